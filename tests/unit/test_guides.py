"""docs/guides.md: each command on it passes the checks of the config; each test that a page names is there."""

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from torch.distributed.run import parse_args

from lockstep.config.plan import Plan
from lockstep.runs.composition import CONF, compose
from lockstep.runs.validation import check

ROOT = CONF.parent
PAGE = (ROOT / "docs" / "guides.md").read_text()
TABLES, DEFECTS = PAGE.split("## What is wrong in them")
MISSING = ("not yet", "not there")
SLURM = CONF / "hydra" / "launcher" / "slurm.yaml"
LAUNCHER = OmegaConf.load(SLURM) if SLURM.exists() else {}  # it can be removed, with the commands that name its keys
CONFIGS = {"parity.py": "parity", "train.py": "train", "train.sbatch": "train"}  # the others take no overrides


def rows(text: str) -> list[list[str]]:
    """The cells of its tables' rows, less their heads."""
    result = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in result if not cells[0].startswith("---") and cells[-1] != "proved by"]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


COMMANDS = [*dict.fromkeys(command for cells in rows(TABLES) for command in code(cells[1]))]


@pytest.mark.parametrize("page", ["guides.md", "laptop-to-cluster.md", "numbers.md"])
def test_each_test_that_is_named_is_there(page: str) -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 10
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


def test_each_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:deploy|scripts|benchmarks)/[\w.]+)`", (ROOT / "docs" / "laptop-to-cluster.md").read_text()))
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)


def script_and_arguments(command: str) -> tuple[Path, list[str]]:
    """Of `[LAUNCHER ...] SCRIPT ARGUMENT ...`; what torchrun does not take ends the test."""
    words = shlex.split(command)
    if words[0] == "torchrun":
        taken = parse_args(words[1:])
        words = [taken.training_script, *taken.training_script_args]
    if words[0] == "lockstep":
        return ROOT / "scripts" / f"{words[1]}.py", words[2:]
    at = next(i for i, word in enumerate(words) if word.endswith((".py", ".sbatch")))
    return ROOT / words[at], words[at + 1 :]


def is_group(override: str) -> bool:
    return (CONF / override.partition("=")[0]).is_dir()


@functools.cache
def with_options(config: str, *options: str) -> DictConfig:
    """Composed once for all commands that choose the same options: it takes a third of a second."""
    return compose(*options, config_name=config)


def composed(config: str, overrides: list[str]) -> Iterator[DictConfig]:
    """For each job, where they are a sweep's."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    values = [
        [f"{one.key_or_group}={value}" for value in one.sweep_string_iterator()] if one.is_sweep_override() else [one.input_line]
        for one in parsed
    ]
    for job in itertools.product(*values):
        cfg = with_options(config, *(override for override in job if is_group(override)))
        own = OmegaConf.from_dotlist([override for override in job if not is_group(override)])
        yield OmegaConf.merge(cfg, own)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_composes_and_passes_the_checks(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    script, arguments = script_and_arguments(command)
    flags = [argument for argument in arguments if argument.startswith("-") and argument != "-m"]
    assert all(f'"{flag}"' in script.read_text() for flag in flags)
    overrides = [argument.replace("PATH", str(tmp_path)) for argument in arguments if "=" in argument]
    of_launcher = [override for override in overrides if override.startswith("hydra.launcher.")]
    assert all(override.split(".")[2].partition("=")[0] in LAUNCHER for override in of_launcher)
    overrides = [override for override in overrides if override not in of_launcher]
    if script.suffix == ".sbatch":
        overrides += [word for word in script.read_text().split() if word.startswith("trainer=")]
    overrides = [override for override in overrides if not override.startswith("resume=")]  # which Hydra does not see
    if script.name not in CONFIGS:
        assert overrides == []
        return
    for cfg in composed(CONFIGS[script.name], overrides):
        check(cfg)
        assert Plan.from_config(cfg).world_size >= 1


def test_a_key_that_is_not_there_is_seen() -> None:
    with pytest.raises(Exception, match=r"trainer\.device\b"):
        list(composed("train", ["trainer.device=2"]))


@pytest.mark.parametrize(
    ("experiment", "optimizer", "batch_size", "epochs"),
    [("toy_regression", "SGD", 20, 5), ("checkpoint_every_10", "SGD", 32, 50)],
)
def test_the_programs_are_those_of_the_guides(experiment: str, optimizer: str, batch_size: int, epochs: int) -> None:
    (cfg,) = composed("train", [f"experiment={experiment}"])
    assert cfg.model.optimizer._target_ == f"torch.optim.{optimizer}"
    assert (cfg.datamodule.batch_size, cfg.trainer.max_epochs) == (batch_size, epochs)
    assert (cfg.datamodule.in_features, cfg.datamodule.out_features) == (10, 10)
    assert cfg.guards.checkpoint.every_n_epochs == (10 if experiment == "checkpoint_every_10" else 1)
