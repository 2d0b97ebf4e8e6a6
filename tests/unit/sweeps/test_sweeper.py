from types import ModuleType
from typing import Any

import pytest
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins import basic_launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from hydra_plugins import lockstep_launcher, lockstep_sweeper


class Loader:
    def __init__(self) -> None:
        self.composed: list[list[str]] = []

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        self.composed.append(sweep_overrides)
        return master_config


# Modules and names: Hydra executes a plugin's module anew whenever it looks for plugins, and its classes are others then.
@pytest.mark.parametrize(
    ("module", "name", "times"),
    [(lockstep_launcher, "LockstepLauncher", 0), (basic_launcher, "BasicLauncher", 1)],
)
def test_jobs_are_composed_beforehand_only_where_the_launcher_does_not(module: ModuleType, name: str, times: int) -> None:
    loader: Any = Loader()
    sweeper = lockstep_sweeper.LockstepSweeper(max_batch_size=None)
    sweeper.launcher, sweeper.config = getattr(module, name)(), DictConfig({})
    sweeper.hydra_context = HydraContext(config_loader=loader, callbacks=Callbacks())
    batch = [["seed=1"], ["seed=2"]]
    sweeper.validate_batch_is_legal(batch)
    assert loader.composed == batch * times
