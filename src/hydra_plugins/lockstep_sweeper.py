"""Hydra's own sweeper, without composing every job a first time only to see that it can be."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore

from hydra_plugins.lockstep_launcher import SweepLauncher


@dataclass
class LockstepSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.lockstep_sweeper.LockstepSweeper"
    params: dict[str, str] | None = field(default_factory=dict)  # OmegaConf can't merge a mapping into null


ConfigStore.instance().store(group="hydra/sweeper", name="lockstep", node=LockstepSweeperConf, provider="lockstep")


class LockstepSweeper(BasicSweeper):
    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Our launchers compose and check all jobs of a batch before they start the first: see lockstep.sweeps.sweep."""
        if not isinstance(self.launcher, SweepLauncher):
            super().validate_batch_is_legal(batch)
