"""A run that takes its directory, as its config and its command line say."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.launchers.command_line import CommandLine
from lockstep.runs.directory import OWN_DIRECTORY, take_run_directory
from lockstep.runs.events import Subscribers


def config(directory: Any, *overrides: str, given: bool = True, **root: Any) -> DictConfig:
    """As far as a directory is concerned."""
    hydra = {
        "run": {"dir": directory},
        "job": {"config_name": "train"},
        "runtime": {"choices": {}, "config_sources": [{"provider": "main", "path": "/conf"}]},
        "overrides": {"task": list(overrides), "hydra": [f"hydra.run.dir={directory}"] if given else []},
    }
    return OmegaConf.create(
        {"resume": None, "overwrite": False, "mirror": None, "datamodule": {"global_batch_size": None}, "hydra": hydra} | root
    )


def begin(config: DictConfig, global_batch_size: int) -> bool:
    return take_run_directory(config, CommandLine.of(config), global_batch_size, Subscribers.compose(config))


def run_in(directory: Path, *overrides: str) -> Path:
    """What a run that has finished has left."""
    begin(config(str(directory), *overrides), 64)
    (directory / "status.json").write_text('{"status": "finished"}')
    (directory / "metrics.json").write_text('{"metrics": {}}')
    (directory / "train.log").write_text("epoch 1\n")
    (directory / ".hydra").mkdir()
    (directory / ".hydra" / "overrides.yaml").write_text("- seed=1\n")
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    OWN_DIRECTORY.leave()
    return directory


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
