from typing import Any

import pytest
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from hydra_plugins.lockstep_launcher import LockstepLauncher
from hydra_plugins.lockstep_sweeper import LockstepSweeper


class Loader:
    def __init__(self) -> None:
        self.composed: list[list[str]] = []

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        self.composed.append(sweep_overrides)
        return master_config


@pytest.mark.parametrize(("launcher", "times"), [(LockstepLauncher(), 0), (BasicLauncher(), 1)])
def test_jobs_are_composed_beforehand_only_where_the_launcher_does_not(launcher: Launcher, times: int) -> None:
    loader: Any = Loader()
    sweeper = LockstepSweeper(max_batch_size=None)
    sweeper.launcher, sweeper.config = launcher, DictConfig({})
    sweeper.hydra_context = HydraContext(config_loader=loader, callbacks=Callbacks())
    batch = [["seed=1"], ["seed=2"]]
    sweeper.validate_batch_is_legal(batch)
    assert loader.composed == batch * times
