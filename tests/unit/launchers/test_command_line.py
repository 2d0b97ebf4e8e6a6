"""Command lines made from the one that was given, and the config that is handed over beside one: what the process would have
composed, to the last key of Hydra's own part."""

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from lockstep.launchers.command_line import CommandLine, command_with, take_handed
from lockstep.launchers.environment import HANDED_CONFIG, register_resolvers
from lockstep.runs.composition import CONF

OVERRIDES = ("model=mlp", "+model.note='a=b, [c]'", "hydra.job_logging.root.level=WARN", "~callbacks.pictures", "logger=csv")


def composed(*overrides: str) -> DictConfig:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = hydra.compose("train", overrides=list(overrides), return_hydra_config=True)
    config.hydra.job.config_name = "train"  # as Hydra's command line says
    config.hydra.mode = RunMode.RUN
    OmegaConf.set_readonly(config.hydra, True)  # and read-only
    return config


def content(config: DictConfig) -> Any:
    found: Any = OmegaConf.to_container(config, resolve=False)
    found["hydra"]["overrides"]["hydra"] = [o for o in found["hydra"]["overrides"]["hydra"] if o != "hydra.mode=RUN"]
    return found


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The arguments of the process that a config was handed to."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    command = CommandLine.of(composed(*OVERRIDES))
    monkeypatch.setenv(HANDED_CONFIG, command.handed_to(tmp_path / "it's, here")[HANDED_CONFIG])
    return command.in_directory(tmp_path / "it's, here")[1:]


def test_it_is_what_its_command_composes(handed: list[str]) -> None:
    config = take_handed(handed)
    assert config is not None
    overrides = [item for item in handed[1:] if "=" in item or item.startswith("~")]
    assert content(config) == content(composed(*overrides))
    assert config.hydra.run.dir.endswith("/it's, here")


def test_it_is_taken_once(handed: list[str]) -> None:
    assert take_handed(handed) is not None
    assert take_handed(handed) is None


def test_another_command_composes_its_own(handed: list[str]) -> None:
    assert take_handed([*handed, "seed=7"]) is None


def test_one_that_is_too_long_for_a_variable_is_not_handed_over(tmp_path: Path) -> None:
    config = composed()
    with open_dict(config):
        config.note = f"{random.Random(0).getrandbits(2**20):x}"
    assert CommandLine.of(config).handed_to(tmp_path) == {}


def test_one_with_a_class_that_has_no_name_is_not_handed_over(tmp_path: Path) -> None:
    @dataclass
    class Local:
        value: int = 1

    config = composed()
    with open_dict(config):
        config.note = OmegaConf.structured(Local)
    assert CommandLine.of(config).handed_to(tmp_path) == {}


def test_what_was_composed_without_a_command_line_is_not_handed_over(tmp_path: Path) -> None:
    assert CommandLine().handed_to(tmp_path) == {}


def test_this_program_again_with_more_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1"])
    assert command_with("test=false") == [sys.executable, "train.py", "seed=1", "test=false"]
