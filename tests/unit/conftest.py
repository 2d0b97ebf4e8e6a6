"""What the unit tests share: configs composed as `train.py` composes them, without Hydra's command line."""

import copy
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig

from lockstep.launchers.environment import register_resolvers
from lockstep.overrides import quote

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="session")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DictConfig]:
    """Composes conf/train.yaml with overrides. `name` and `run_dir` are asked of Hydra in a run, so they are given here."""
    register_resolvers()
    elsewhere = tmp_path_factory.getbasetemp() / "run"

    def with_overrides(*overrides: str, run_dir: Path = elsewhere) -> DictConfig:
        given = ["name=unit", f"run_dir={quote(str(run_dir))}", *overrides]
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return hydra.compose("train", overrides=given)

    return with_overrides


@pytest.fixture(scope="session")
def _composed_once(compose: Callable[..., DictConfig]) -> DictConfig:
    return compose()


@pytest.fixture
def shipped(_composed_once: DictConfig) -> DictConfig:
    """The config as it is shipped; a copy, to be changed."""
    return copy.deepcopy(_composed_once)
