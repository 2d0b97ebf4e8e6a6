"""Runs that began when classes of a capability were elsewhere."""

from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from lockstep.config.targets import former_names
from lockstep.extras.saved_runs.saved import saved_config


@pytest.mark.parametrize(("former", "name"), former_names().items())
def test_their_configs_are_read_with_the_present_names(former: str, name: str, tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    content = OmegaConf.create({"datamodule": {"_target_": former, "size": 8}, "run_dir": "x"})
    OmegaConf.save(content, tmp_path / ".hydra" / "config.yaml")
    assert saved_config(tmp_path, []).datamodule == {"_target_": name, "size": 8}
    assert callable(get_object(name))
