"""Parameters that are not trained, or not from the start."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer

from lockstep.console import join_first
from lockstep.errors import config_error
from lockstep.trainer.batchnorm import is_batchnorm

log = logging.getLogger(__name__)


class Freeze(Callback):
    """Do not train parameters in whose names `match` is found, nor update the running statistics of BatchNorm layers to which
    they belong. `unfreeze`, {EPOCH: PATTERN}, says from which epoch on, 0 is the first, which of them are trained.

    The epoch alone decides which parameters are frozen, so a resumed run needs no state of it. A parameter that is unfrozen later
    has a gradient all the time, which no step uses until then: DDP takes none in that had none at the start.
    """

    def __init__(self, match: str, unfreeze: Mapping[int, str] | None = None) -> None:
        for pattern in (match, *(unfreeze or {}).values()):
            re.compile(pattern)  # raises re.error if it is invalid
        self.match, self.unfreeze = match, dict(sorted((unfreeze or {}).items()))
        self._ends: dict[str, int | None] = {}  # the epoch from which each parameter is trained
        self._waiting: list[nn.Parameter] = []
        self._still: list[nn.Module] = []  # BatchNorm layers

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        names = [name for name, parameter in pl_module.named_parameters() if parameter.requires_grad]
        frozen = _matching("match", self.match, names)
        self._ends = dict.fromkeys(frozen)
        for epoch, pattern in self.unfreeze.items():
            for name in _matching(f"unfreeze.{epoch}", pattern, [name for name in frozen if self._ends[name] is None]):
                self._ends[name] = epoch
        if len(frozen) == len(names) and 0 not in self.unfreeze:
            raise config_error("callbacks.freeze.match", self.match, "leaves nothing to train; use a part of the model")
        for name in frozen:
            if self._ends[name] is None:
                pl_module.get_parameter(name).requires_grad_(False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = self._apply(trainer, pl_module)
        log.info(f"frozen: {join_first(names)}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._apply(trainer, pl_module)
        if released := [name for name, end in self._ends.items() if end == trainer.current_epoch > 0]:
            log.info(f"trained from epoch {trainer.current_epoch + 1} on: {join_first(released)}")

    def _apply(self, trainer: Trainer, model: LightningModule) -> list[str]:
        """Return the names of the parameters that are frozen in this epoch."""
        frozen = [name for name, end in self._ends.items() if end is None or end > trainer.current_epoch]
        self._waiting = [model.get_parameter(name) for name in frozen if self._ends[name] is not None]
        for layer in self._still:
            layer.train()
        own = {id(model.get_parameter(name)) for name in frozen}
        norms = [layer for layer in model.modules() if is_batchnorm(layer) and next(layer.parameters(), None) is not None]
        self._still = [layer for layer in norms if all(id(parameter) in own for parameter in layer.parameters())]
        for layer in self._still:
            layer.eval()
        return frozen

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        for parameter in self._waiting:
            parameter.grad = None  # an optimizer passes over what has no gradient


def _matching(key: str, pattern: Any, names: list[str]) -> list[str]:
    matches = [name for name in names if re.search(pattern, name)]
    if not matches:
        needs = f"no parameter is left that it is found in; use part of a name such as {', '.join(names[:4])}"
        raise config_error(f"callbacks.freeze.{key}", pattern, needs)
    return matches
