"""The pages in docs/ follow the code: what guides.md, how-it-works.md and reference.md name is there, and passes."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import make_reference
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from in_process import composed_at_once
from make_reference import reference
from omegaconf import OmegaConf
from torch.distributed.run import parse_args

from lockstep.config.plan import Plan
from lockstep.runs.composition import CONF
from lockstep.runs.validation import check

ROOT = CONF.parent
GUIDES = (ROOT / "docs" / "guides.md").read_text()
LAUNCHER = OmegaConf.load(CONF / "hydra" / "launcher" / "slurm.yaml")
CONFIGS = {"parity.py": "parity", "train.py": "train", "train.sbatch": "train"}  # the others take no overrides
TABLES = [line for line in GUIDES.partition("## What is wrong in them")[0].splitlines() if line.startswith("|")]
COMMANDS = [*dict.fromkeys(command for line in TABLES for command in re.findall(r"`([^`]+)`", line.split("|")[2]))]


@pytest.mark.parametrize("page", ["guides.md", "how-it-works.md", "laptop-to-cluster.md", "numbers.md"])
def test_each_function_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 10
    for file, name in named:
        path = next((ROOT / "tests").rglob(file)) if file.startswith("test_") else ROOT / file
        nodes: list[ast.AST] = [ast.parse(path.read_text())]
        for part in name.split("."):
            nodes = [child for node in nodes for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part]
        assert nodes, f"{file}::{name}"


def script_and_arguments(command: str) -> tuple[Path, list[str]]:
    """Return the parts of `[LAUNCHER ...] SCRIPT ARGUMENT ...`; an argument that torchrun does not take ends the test."""
    words = shlex.split(command)
    if words[0] == "torchrun":
        taken = parse_args(words[1:])
        words = [taken.training_script, *taken.training_script_args]
    if words[0] == "lockstep":
        return ROOT / "scripts" / f"{words[1]}.py", words[2:]
    at = next(i for i, word in enumerate(words) if word.endswith((".py", ".sbatch")))
    return ROOT / words[at], words[at + 1 :]


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
    parsed = OverridesParser.create().parse_overrides(overrides)
    job = [  # a sweep's first
        f"{one.key_or_group}={next(one.sweep_string_iterator())}" if one.is_sweep_override() else str(one.input_line)
        for one in parsed
    ]
    check(cfg := composed_at_once(*job, config_name=CONFIGS[script.name]))
    assert Plan.from_config(cfg).world_size >= 1


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [("toy_regression", ("torch.optim.SGD", 20, 5, 1, 10)), ("checkpoint_every_10", ("torch.optim.SGD", 32, 50, 10, 10))],
)
def test_the_programs_are_those_of_the_guides(experiment: str, expected: tuple[Any, ...]) -> None:
    cfg = composed_at_once(f"experiment={experiment}")
    data, every = cfg.datamodule, cfg.guards.checkpoint.every_n_epochs
    assert data.in_features == data.out_features
    assert (cfg.model.optimizer._target_, data.batch_size, cfg.trainer.max_epochs, every, data.in_features) == expected


def test_the_page_is_what_conf_says_today() -> None:
    assert make_reference.PAGE.read_text() == reference(), "run `make reference`"


def test_every_key_says_what_it_means() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []
