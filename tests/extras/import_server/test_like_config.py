"""A config that was made of another one of the same keys is what it would be, made anew."""

import json
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from lockstep.extras.import_server.like_config import LikeConfig
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.inherited_config import FILE, MADE, read_inherited_config
from lockstep.places import CONF

OTHERS = ["model.net.hidden=[4]", "seed=7", "trainer.max_epochs=1", "model.note='1'", "hydra.job_logging.root.level=INFO"]
NONE = "++callbacks.progress=null"
OTHER_KEYS = (["model=cnn"], ["~callbacks.progress"], ["logger=csv"], ["+new=1"])


def arguments(folder: Path, *overrides: str) -> list[str]:
    """The command that inherits a config, which it leaves in the folder."""
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        given = ["model=mlp", "+model.note=a", *overrides]
        config = hydra.compose("train", overrides=given, return_hydra_config=True)
    config.hydra.job.config_name, config.hydra.mode = "train", RunMode.RUN
    command = CommandLine.of(config)
    folder.mkdir()
    (folder / FILE).write_text(command.inherited_config(folder))
    return command.in_directory(folder)[1:]


def metadata(node: Any) -> Any:
    """Of a config and all groups in it: types and flags."""
    below = {key: metadata(node._get_node(key)) for key in node} if isinstance(node, dict) or OmegaConf.is_dict(node) else {}
    return node._metadata, below


@pytest.mark.parametrize(
    ("before", "overrides"), [("seed=true", other) for other in ([], OTHERS, [NONE], *OTHER_KEYS)] + [(NONE, [])]
)
def test_it_is_the_same_to_the_last_flag(
    before: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    first = arguments(tmp_path / "first", before)
    command = arguments(tmp_path / "second", "seed=1", *overrides)
    anew: Any = read_inherited_config(command)
    like = LikeConfig(json.loads((tmp_path / "first" / FILE).read_text())["config"])
    like.make(command)
    assert bool(MADE) == (overrides not in OTHER_KEYS)
    made: Any = read_inherited_config(command)
    assert not MADE
    assert OmegaConf.to_yaml(made) == OmegaConf.to_yaml(anew)
    assert metadata(made) == metadata(anew)
    assert type(made.seed) is int
    like.make(first)
    assert not MADE, "it is spent"
