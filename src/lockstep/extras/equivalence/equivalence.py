"""What keeps several processes from giving the result of one, said when training starts, or once it does."""

import logging

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from lockstep.console import join_first
from lockstep.trainer.monitor import Monitor

log = logging.getLogger(__name__)


class EquivalenceReport(Monitor, Callback):
    """Logs a line for each cause that can be seen from the built parts; `causes` keeps them for the record of the run.

    What the code of a model does, no look at its layers can tell: scripts/parity.py finds it by training.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._frozen: set[str] = set()  # when DDP has wrapped the model

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.causes = []
        if trainer.world_size > 1:
            from lockstep.extras.equivalence.causes import find_causes

            self.causes = list(find_causes(trainer, pl_module))
        for cause in self.causes:
            log.info(f"Not as on one process: {cause}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, DDPStrategy):
            self._frozen = {name for name, parameter in pl_module.named_parameters() if not parameter.requires_grad}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        late = [name for name in sorted(self._frozen) if pl_module.get_parameter(name).requires_grad]
        if late:
            self._frozen -= {*late}
            why = "had no gradient when training began, and DDP averages none of theirs: each process trains its own"
            self.causes.append(f"{join_first(late)} {why}; accepted are ones that have a gradient from the start")
            log.warning(f"Not as on one process: {self.causes[-1]}")
