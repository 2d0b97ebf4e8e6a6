"""Command lines made from the one that was given, and the config that is handed over beside one: what the process would have
composed, to the last key of Hydra's own part."""

import base64
import pickle
import select
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from lockstep.launchers.command_line import CommandLine, command_with, take_handed
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.rank import _first_line
from lockstep.launchers.supervisor import pipe
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
def handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, list[str]]:
    """What a process is handed, and its arguments."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    command = CommandLine.of(composed(*OVERRIDES))
    folder = tmp_path / "it's, here"
    return command.handed_to(folder), command.in_directory(folder)[1:]


def test_it_is_what_its_command_composes(handed: tuple[str, list[str]]) -> None:
    """The types of Hydra's own part are its own, too, but for those of the launcher and sweeper, of which a run has no use."""
    content_handed, arguments = handed
    config = take_handed(content_handed, arguments)
    assert config is not None
    anew = composed(*(item for item in arguments[1:] if "=" in item or item.startswith("~")))
    assert content(config) == content(anew)
    assert config.hydra.run.dir.endswith("/it's, here")
    found, expected = ({key: kind for key, kind in types(one).items() if ".launcher" not in key} for one in (config, anew))
    assert {key: kind for key, kind in found.items() if ".sweeper" not in key} == {
        key: kind for key, kind in expected.items() if ".sweeper" not in key
    }


def types(node: Any, key: str = "") -> dict[str, Any]:
    """Of a node and all in it: the type, and the flags of a container."""
    if not isinstance(node, DictConfig | ListConfig):
        return {key: type(node)}
    found: dict[str, Any] = {key: (OmegaConf.get_type(node), node._metadata.ref_type, node._metadata.flags or {})}
    if not (node._is_none() or node._is_missing() or node._is_interpolation()):
        for name in node if isinstance(node, DictConfig) else range(len(node)):
            found |= types(node._get_node(name), f"{key}.{name}")
    return found


def test_another_command_composes_its_own(handed: tuple[str, list[str]]) -> None:
    assert take_handed(handed[0], [*handed[1], "seed=7"]) is None


@pytest.mark.parametrize("content", ["", "x", "5", "[", "null", base64.b85encode(pickle.dumps(([], {}))).decode()])
def test_what_is_no_config_is_none(content: str) -> None:
    assert take_handed(content, ["train.py"]) is None


def test_one_that_a_pipe_can_not_hold_is_not_handed_over() -> None:
    """The process follows its parent all the same."""
    with pipe("x" * 2**20) as (reader, _):
        assert not select.select([reader], [], [], 0)[0]
    with pipe("a line") as (reader, _):
        assert _first_line(reader) == "a line\n"
        assert _first_line(reader) == ""


@dataclass
class Schema:
    """Of a user's own."""

    value: int = 1


@pytest.mark.parametrize("value", [OmegaConf.structured(Schema), {2: "a whole number as a key"}, Path("path"), [float("nan")]])
def test_what_plain_containers_do_not_hold_is_not_handed_over(value: Any, tmp_path: Path) -> None:
    config = composed()
    with open_dict(config):
        config.note = value
    assert CommandLine.of(config).handed_to(tmp_path) == ""


def test_what_was_composed_without_a_command_line_is_not_handed_over(tmp_path: Path) -> None:
    assert CommandLine().handed_to(tmp_path) == ""


def test_this_program_again_with_more_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1"])
    assert command_with("test=false") == [sys.executable, "train.py", "seed=1", "test=false"]
