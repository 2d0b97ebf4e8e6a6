"""What the unit tests share: configs composed as `train.py` composes them, without Hydra's command line."""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fits import composed
from omegaconf import DictConfig


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """seed_everything leaves variables behind."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DictConfig]:
    """Composes conf/train.yaml with overrides; see tests/fits.py."""
    elsewhere = tmp_path_factory.getbasetemp() / "run"

    def with_overrides(*overrides: str, run_dir: Path = elsewhere) -> DictConfig:
        return composed(*overrides, run_dir=run_dir)

    return with_overrides


@pytest.fixture(scope="session")
def _composed_once(compose: Callable[..., DictConfig]) -> DictConfig:
    return compose()


@pytest.fixture
def shipped(_composed_once: DictConfig) -> DictConfig:
    """The config as it is shipped; a copy, to be changed."""
    return copy.deepcopy(_composed_once)
