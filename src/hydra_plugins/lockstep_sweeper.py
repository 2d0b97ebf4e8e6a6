"""Hydra's own sweeper, without composing every job a first time only to see that it can be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore

from hydra_plugins.lockstep_launcher import SweepLauncher
from lockstep.config.rules import integer
from lockstep.errors import config_error


@dataclass
class LockstepSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.lockstep_sweeper.LockstepSweeper"
    params: dict[str, str] | None = field(default_factory=dict)  # OmegaConf can't merge a mapping into null


ConfigStore.instance().store(group="hydra/sweeper", name="lockstep", node=LockstepSweeperConf, provider="lockstep")


class LockstepSweeper(BasicSweeper):
    def sweep(self, arguments: list[str]) -> Any:
        if self.max_batch_size is not None and self.max_batch_size < 1:
            raise config_error("hydra.sweeper.max_batch_size", self.max_batch_size, integer(1).or_null().words)
        return super().sweep(arguments)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Our launchers compose and check all jobs of a batch before they start the first: see lockstep.sweeps.sweep.
        Of several batches, by max_batch_size, all are checked before the first one."""
        if not isinstance(self.launcher, SweepLauncher):
            super().validate_batch_is_legal(batch)
        elif self.batch_index == 1 and len(self.overrides or ()) > 1:
            self.launcher.sweep.check([job for batch in self.overrides or () for job in batch])
