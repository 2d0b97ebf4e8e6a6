"""The config that is handed to a rank or a job: what the process would have composed, to the last key of Hydra's own part."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from lockstep import cli
from lockstep.cli import start
from lockstep.config.plan import Plan
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.inherited_config import FILE, inherited_config, read_inherited_config, read_inherited_plan
from lockstep.runs.composition import CONF

OVERRIDES = (
    "model=mlp",
    "+model.note='a=b, [c]'",
    "hydra.job_logging.root.level=WARN",
    "~callbacks.best_checkpoint",
    "logger=csv",
)


def composed(*overrides: str) -> DictConfig:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = hydra.compose("train", overrides=list(overrides), return_hydra_config=True)
    config.hydra.job.config_name = "train"  # as Hydra's command line says
    config.hydra.mode = RunMode.RUN
    OmegaConf.set_readonly(config.hydra, True)  # and read-only
    return config


def content(config: DictConfig) -> Any:
    content: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    content["hydra"]["overrides"]["hydra"] = [o for o in content["hydra"]["overrides"]["hydra"] if o != "hydra.mode=RUN"]
    return content


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return CommandLine.of(composed(*OVERRIDES))


def test_it_is_what_the_command_composes(command: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "it's, here"
    folder.mkdir()
    arguments = command.in_directory(folder)[1:]
    with inherited_config(folder, command.inherited_config(folder)):
        config = read_inherited_config(arguments)
        assert read_inherited_config([*arguments, "seed=7"]) is None, "another command"
        assert read_inherited_config(["other.py", *arguments[1:]]) is None
    assert config is not None
    assert content(config) == content(composed(*(item for item in arguments[1:] if "=" in item or item.startswith("~"))))
    assert config.hydra.run.dir.endswith("/it's, here")
    assert OmegaConf.is_struct(config)
    assert not list(folder.iterdir())
    assert read_inherited_config(arguments) is None


def test_a_rank_has_the_plan_of_its_parent(command: CommandLine, tmp_path: Path) -> None:
    plan = Plan("gpu", 2, (3, 1), 1, 2, 8, 16, 1, 1e-3)
    arguments = command.in_directory(tmp_path)[1:]
    with inherited_config(tmp_path, command.inherited_config(tmp_path, plan)):
        assert read_inherited_plan(arguments) == plan
    with inherited_config(tmp_path, command.inherited_config(tmp_path)):
        assert read_inherited_plan(arguments) is None, "a sweep's job makes its own"


@pytest.mark.parametrize("content", ["", "x", "5", "[", "null", '{"arguments": 1}', '{"arguments": ["hydra.run.dir=HERE"]}'])
def test_what_is_no_config_is_none(content: str, tmp_path: Path) -> None:
    arguments = [f"hydra.run.dir={tmp_path}"]
    (tmp_path / FILE).write_text(content.replace("HERE", str(tmp_path)))
    assert read_inherited_config(arguments) is None


def test_without_content_what_somebody_else_has_left_there_is_removed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with inherited_config(tmp_path, ""):
        assert not list(tmp_path.iterdir())


@dataclass
class Schema:
    """Of a user's own."""

    value: int = 1


def test_overrides_name_other_keys_of_the_config_wherever_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint callback of one's own, say, whose files would be in None/mine after a resumption."""
    monkeypatch.setenv("WIDTH", "64")
    given = ("+callbacks.mine={dirpath: '${run_dir}/mine', mode: '${.other}'}", "+model.width=${oc.env:WIDTH}")
    command = CommandLine.of(composed(*given))
    assert command.overrides == (given[0], "+model.width=64")
    assert command.with_values({"seed": 3}).overrides == (given[0], "+model.width=64", "seed=3")


@pytest.mark.parametrize("value", [OmegaConf.structured(Schema), {2: "a whole number as a key"}, Path("path"), [float("nan")]])
def test_what_plain_containers_do_not_hold_is_composed_anew(value: Any, tmp_path: Path) -> None:
    config = composed()
    with open_dict(config):
        config.note = value
    assert CommandLine.of(config).inherited_config(tmp_path) == ""
    assert CommandLine().inherited_config(tmp_path) == ""


@pytest.fixture
def program(tmp_path: Path) -> tuple[Callable[[], None], list[Any]]:
    """Of one key, and what it has been given."""
    given: list[Any] = []

    def note(config: DictConfig) -> None:
        given.append((OmegaConf.to_container(config), OmegaConf.to_container(HydraConfig.get(), enum_to_str=True)))

    (tmp_path / "train.yaml").write_text("seed: 1")
    return hydra.main(version_base="1.3", config_path=str(tmp_path), config_name="train")(note), given


@pytest.mark.parametrize("is_started_by_lockstep", [True, False])
def test_only_who_is_started_by_lockstep_reads_it(
    is_started_by_lockstep: bool,
    program: tuple[Callable[[], None], list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It composes nothing then, and is given what it would have composed."""
    main, given = program
    quiet = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.mode=RUN")
    monkeypatch.setattr(sys, "argv", ["train.py", *quiet, "seed=2", f"hydra.run.dir={tmp_path}"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it; so it is taken back
    main()
    (config, its_hydra), compose = given[0], Hydra.compose_config
    calls: list[str] = []
    monkeypatch.setattr(Hydra, "compose_config", lambda *args, **kwargs: calls.append("once") or compose(*args, **kwargs))
    monkeypatch.setattr(cli, "attach_to_parent", lambda: is_started_by_lockstep)
    text = json.dumps({"arguments": sys.argv, "config": config | {"hydra": its_hydra}})
    with inherited_config(tmp_path, text):
        start(main)
    assert bool(calls) != is_started_by_lockstep
    assert given[1] == given[0]
