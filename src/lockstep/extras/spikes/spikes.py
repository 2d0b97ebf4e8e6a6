"""Steps whose loss is far above those before it."""

import math
import statistics
from collections import deque
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from lockstep.atomic_files import read_json, write_json
from lockstep.callbacks.checkpoints import find_last_checkpoint
from lockstep.errors import NamedFailure, StartAgain
from lockstep.extras.nonfinite.nonfinite import NonFinite

FILE = "spikes.json"  # in the run's directory


class TooManySpikes(NamedFailure):
    """So many steps were left out that the training itself must be wrong."""


class Spikes(NonFinite):
    """Leaves a step out, as NonFinite does, whose loss is more than `sigmas` standard deviations above the mean of the last
    `window` steps that were made; it watches from half a window on. The loss is the mean over all ranks and accumulated batches,
    so that all ranks decide alike; reading it waits for the device at every step.

    As OLMo 2 (arXiv:2501.00656) does, by six deviations in 128 steps. With `rewind` the ranks end, and are started again from
    the last checkpoint; all steps from there up to the spike are left out, as PaLM (arXiv:2204.02311) passes over the batches
    that led to it. spikes.json in the run's directory says which these are.

    Args:
        limit: the guard intervenes so often; at the next spike the run ends by TooManySpikes.
        action: "skip" or "rewind".
    """

    def __init__(self, sigmas: float = 6.0, window: int = 128, limit: int = 20, action: str = "skip") -> None:
        super().__init__(action="skip")
        self.rewinds, self.sigmas, self.limit = action == "rewind", sigmas, limit
        self.rewound: list[list[int]] = []  # the first and the last step of what each going back has passed over
        self.left_out: list[int] = []  # the steps
        self._window: deque[float] = deque(maxlen=window)
        self._step_loss: Tensor | None = None
        self._loss = 0.0
        self._spike: int | None = None  # to which the step has led that is passed over

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._file = Path(trainer.default_root_dir) / FILE
        self.rewound = trainer.strategy.broadcast((read_json(self._file, {"rewound": [[int]]}) or {"rewound": []})["rewound"])

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        own = loss.detach()  # Lightning has divided it by the number of accumulated batches
        self._step_loss = own if self._step_loss is None else self._step_loss + own

    def may_step(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        own, self._step_loss = self._step_loss, None
        self._loss = float(trainer.strategy.reduce(torch.as_tensor(own).clone(), reduce_op="mean"))
        self._spike = self._spike_before(trainer.global_step)
        if self._spike is None:
            if not self._is_spike():
                self._window.append(self._loss)
                return True
            if len(self.rewound if self.rewinds else self.left_out) == self.limit:
                raise TooManySpikes(f"guards.spikes.limit={self.limit}: at step {trainer.global_step} {self.why()}")
            if self.rewinds:
                self._go_back(trainer)
        self.left_out.append(trainer.global_step)
        return False

    def _spike_before(self, step: int) -> int | None:
        """Returns the spike to which a step has led that is passed over."""
        return next((last for first, last in self.rewound if first <= step <= last), None)

    def _go_back(self, trainer: Trainer) -> None:
        saver, last = find_last_checkpoint(trainer), trainer.global_step
        first = saver.saved_step if saver else 0
        if trainer.is_global_zero:
            write_json(self._file, {"rewound": [*self.rewound, [first, last]]})
        trainer.strategy.barrier("what is passed over is recorded")
        raise StartAgain(f"at step {last} {self.why()}: steps {first} to {last} are passed over, from the last checkpoint")

    def _is_spike(self) -> bool:
        if len(self._window) < math.ceil((self._window.maxlen or 0) / 2):
            return False
        return self._loss > statistics.fmean(self._window) + self.sigmas * statistics.stdev(self._window)

    def why(self) -> str:
        if self._spike is not None:
            return f"it has led to the spike at step {self._spike}"
        mean, deviation = statistics.fmean(self._window), statistics.stdev(self._window)
        return f"its loss of {self._loss:.4g} is a spike above {mean:.4g}, with a standard deviation of {deviation:.2g}"

    def facts(self) -> dict[str, Any]:
        return {"spikes_left_out": self.left_out} | ({"spikes_rewound": self.rewound} if self.rewinds else {})

    def state_dict(self) -> dict[str, Any]:
        return {"window": [*self._window], "left_out": [*self.left_out]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._window.extend(state_dict["window"])
        self.left_out = [*state_dict["left_out"]]
