"""What keeps several processes from giving the result of one, said when training starts."""

import logging

from lightning import Callback, LightningModule, Trainer

from lockstep.extras.monitor import Monitor

log = logging.getLogger(__name__)


class EquivalenceReport(Monitor, Callback):
    """Logs a line for each cause that can be seen from the built parts; `causes` keeps them for the record of the run.

    What the code of a model does, no look at its layers can tell: scripts/parity.py finds it by training.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.causes = []
        if trainer.world_size > 1:
            from lockstep.extras.equivalence.causes import find_causes

            self.causes = list(find_causes(trainer, pl_module))
        for cause in self.causes:
            log.info(f"Not as on one process: {cause}")
