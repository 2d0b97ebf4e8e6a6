"""Freeze parameters for all epochs, or until an epoch."""

import logging
import math
import re
from collections.abc import Mapping

from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from lockstep.console import join_first
from lockstep.errors import config_error
from lockstep.trainer.batchnorm import is_batchnorm

log = logging.getLogger(__name__)


class Freeze(Callback):
    """Freeze parameters whose names match `match`, and the running statistics of their BatchNorm layers. `unfreeze`,
    {EPOCH: PATTERN}, gives the epoch, counted from 0, from which parameters that match PATTERN are trained.

    The epoch alone decides which parameters are frozen, so a resumed run needs no state. A parameter that is unfrozen later has a
    gradient from the start, which no step uses until then, because DDP ignores parameters that required no gradient at first.
    """

    def __init__(self, match: str, unfreeze: Mapping[int, str] | None = None) -> None:
        self.match = re.compile(match)
        self.unfreeze = {epoch: re.compile(pattern) for epoch, pattern in sorted((unfreeze or {}).items())}
        self._ends: dict[str, float] = {}  # first epoch in which each frozen parameter is trained

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        names = [name for name, parameter in pl_module.named_parameters() if parameter.requires_grad]
        frozen = [name for name in names if self.match.search(name)]
        if not frozen:
            needs = f"no parameter's name matches; use part of a name such as {', '.join(names[:4])}"
            raise config_error("callbacks.freeze.match", self.match.pattern, needs)
        for name in frozen:
            self._ends[name] = next((epoch for epoch, pattern in self.unfreeze.items() if pattern.search(name)), math.inf)
            if self._ends[name] == math.inf:
                pl_module.get_parameter(name).requires_grad_(False)
        log.info(f"frozen: {join_first(frozen)}")

    def _is_frozen(self, name: str, trainer: Trainer) -> bool:
        return self._ends.get(name, 0) > trainer.current_epoch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # a run may be resumed within an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, layer in pl_module.named_modules():
            own = [f"{name}.{parameter}" for parameter, _ in layer.named_parameters(recurse=False)]
            if own and is_batchnorm(layer) and all(each in self._ends for each in own):
                layer.train(not all(self._is_frozen(each, trainer) for each in own))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        for name in self._ends:
            if self._is_frozen(name, trainer):
                pl_module.get_parameter(name).grad = None  # optimizers skip parameters without a gradient
