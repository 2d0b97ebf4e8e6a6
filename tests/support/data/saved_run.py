"""The directory of a run, as far as its saved config is concerned."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.runs.saved import write_config

CONFIG = {
    "model": {"_target_": "M", "optimizer": {"lr": 0.1}},
    "datamodule": {"batch_size": 8, "global_batch_size": None},
    "trainer": {"devices": 2, "max_epochs": 5},
    "seed": 2,
    "lr_scaling": "none",
    "init_from": None,
    "fork": None,
    "forked_from": None,
    "overwrite": False,
    "run_dir": "${hydra:runtime.output_dir}",
}


def save_run(
    folder: Path, *overrides: str, run_id: str = "its id", global_batch_size: int | None = None, choices: Any = (), **root: Any
) -> Path:
    """`root`: keys that have other values than in CONFIG."""
    job = {"chdir": None, "env_set": {}}
    hydra = OmegaConf.create({"overrides": {"task": [*overrides]}, "runtime": {"choices": dict(choices)}, "job": job})
    write_config(folder, OmegaConf.create(CONFIG | root), hydra, run_id, global_batch_size)
    return folder
