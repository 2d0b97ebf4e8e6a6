"""Steps whose loss is far above those before it."""

import math
import statistics
from collections import deque
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from lockstep.callbacks import NonFinite
from lockstep.errors import NamedFailure


class TooManySpikes(NamedFailure):
    """So many steps were left out that the training itself must be wrong."""


class Spikes(NonFinite):
    """Leaves a step out, as NonFinite does, whose loss is more than `sigmas` standard deviations above the mean of the last
    `window` steps that were made; it watches from half a window on. The loss is the mean over all ranks and accumulated batches,
    so that all ranks decide alike; reading it waits for the device at every step.

    As OLMo 2 (arXiv:2501.00656) does, by six deviations in 128 steps. PaLM (arXiv:2204.02311) goes back to a checkpoint before
    the spike and passes over the batches that led to it, which this does not.

    Args:
        limit: so many steps are left out; at the next spike the run ends by TooManySpikes.
    """

    def __init__(self, sigmas: float = 6.0, window: int = 128, limit: int = 20) -> None:
        super().__init__(action="skip")
        self.sigmas, self.limit = sigmas, limit
        self.left_out: list[int] = []  # the steps
        self._window: deque[float] = deque(maxlen=window)
        self._step_loss: Tensor | None = None
        self._loss = 0.0

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        own = loss.detach()  # Lightning has divided it by the number of accumulated batches
        self._step_loss = own if self._step_loss is None else self._step_loss + own

    def may_step(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        own, self._step_loss = self._step_loss, None
        self._loss = float(trainer.strategy.reduce(torch.as_tensor(own).clone(), reduce_op="mean"))
        if not self._is_spike():
            self._window.append(self._loss)
            return True
        if len(self.left_out) == self.limit:
            raise TooManySpikes(f"guards.spikes.limit={self.limit}: at step {trainer.global_step} {self.why()}")
        self.left_out.append(trainer.global_step)
        return False

    def _is_spike(self) -> bool:
        if len(self._window) < math.ceil((self._window.maxlen or 0) / 2):
            return False
        return self._loss > statistics.fmean(self._window) + self.sigmas * statistics.stdev(self._window)

    def why(self) -> str:
        mean, deviation = statistics.fmean(self._window), statistics.stdev(self._window)
        return f"its loss of {self._loss:.4g} is a spike above {mean:.4g}, with a standard deviation of {deviation:.2g}"

    def facts(self) -> dict[str, Any]:
        return {"spikes_left_out": self.left_out}

    def state_dict(self) -> dict[str, Any]:
        return {"window": [*self._window], "left_out": [*self.left_out]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._window.extend(state_dict["window"])
        self.left_out = [*state_dict["left_out"]]
