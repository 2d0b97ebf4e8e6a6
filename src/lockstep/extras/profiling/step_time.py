"""What the time of a step goes to, measured in one step of many."""

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.nn import Parameter
from torchmetrics.utilities.distributed import gather_all_tensors

from lockstep.extras.monitors.monitor import together, watched
from lockstep.extras.profiling.step_parts import StepParts
from lockstep.trainer.steps import log_metrics

PARTS: tuple[str, ...] = ("data", "forward", "backward", "communication", "optimizer", "rest")
_WARM_UP = 5  # batches before the first that is measured


class StepTime(StepParts):
    """Logs time/data and so on: the shares of a batch that is measured, from the end of the batch before to its own end.
    `facts`, for the record of the run, are their means over all that were measured and all ranks.

    data: waiting for the loader; on a GPU as far as it had nothing to do meanwhile. With Lightning's own loop, which does not say
        how long it waits, all that is between two batches.
    communication: with several processes, from the last gradient to the end of the backward pass. That is what of DDP's
    all-reduces is not hidden behind the computation, and the waiting for slower ranks. Collectives of the net's own,
    SyncBatchNorm's say, are part of its forward and backward pass.
    rest: the loop, the callbacks, copies to the device.

    Measured is one batch of `every_n_steps`, without a validation or a checkpoint: on a GPU by events in its stream, for which
    nothing waits, elsewhere by the clock.
    """

    def __init__(self, every_n_steps: int = 97) -> None:
        self.every_n_steps = every_n_steps
        self._facts: dict[str, Any] = {}
        self._until_next = _WARM_UP
        self._batch: _Batch | None = None
        self._unread: list[_Batch] = []
        self._seconds, self._count = dict.fromkeys(PARTS, 0.0), 0

    is_resting = property(lambda self: self._batch is None)  # lockstep.extras.fast_loop asks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(lambda *_: self._batch and self.begin("rest"))

    def facts(self) -> dict[str, Any]:
        """Returns what the record of the run has of it, once training has ended."""
        return self._facts

    def begin(self, part: str) -> None:
        if self._batch is not None:
            self._batch.begin(part)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._until_next -= 1
        if self._batch is not None:
            self._batch.begin("end")
            self._unread.append(self._batch)
            self._batch = None
            self._read(trainer)
        if self._until_next <= 0:
            self._until_next = self.every_n_steps
            self._batch = _Batch(trainer, pl_module, self._has_gradient)

    @watched
    def _has_gradient(self, _: Parameter) -> None:
        if self._batch is not None:
            self._batch.has_gradient()

    def release(self) -> None:
        if self._batch is not None:
            self._batch.take_hooks_away()

    def _read(self, trainer: Trainer) -> None:
        """Those measured batches that the device has come to the end of."""
        while self._unread and self._unread[0].is_over():
            batch = self._unread.pop(0)
            seconds = batch.seconds()
            self._count += 1
            self._seconds = {part: before + seconds[part] for part, before in self._seconds.items()}
            shares = {part: own / sum(seconds.values()) for part, own in seconds.items()}
            if trainer.world_size == 1:
                del shares["communication"]
            log_metrics(trainer, {f"time/{part}": share for part, share in shares.items()})

    def _leave_out(self, *_: Any, **__: Any) -> None:
        if self._batch is not None:
            self._batch, self._until_next = None, 0

    on_train_epoch_start = on_validation_start = on_save_checkpoint = _leave_out

    @together
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        own = self.synchronize(trainer, lambda: self._own(trainer, pl_module))
        if own is None:
            return
        ranks = torch.stack(gather_all_tensors(own) if trainer.world_size > 1 else [own]).cpu()
        if self._count:
            shares = ranks / ranks.sum(dim=1, keepdim=True)
            parts = dict(zip(PARTS, shares.mean(dim=0).tolist(), strict=True))
            said = ", ".join(f"{part} {share:.0%}" for part, share in parts.items() if share >= 0.005)
            self._facts = {
                "step_time": parts,
                "closing_rows": {"a step": said},
                "steps_measured": self._count,
            }

    def _own(self, trainer: Trainer, model: LightningModule) -> Tensor:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        self._read(trainer)
        return torch.tensor([*self._seconds.values()], dtype=torch.float32, device=model.device)


class _Batch:
    """When, on the device's own clock, each part of a batch begins; from now, the end of the one before."""

    def __init__(self, trainer: Trainer, model: LightningModule, has_gradient: Callable[[Parameter], None]) -> None:
        self._loop, self._device = trainer.fit_loop.epoch_loop, model.device
        self._shared = list(model.parameters()) if trainer.world_size > 1 else []
        self._call_at_gradient = has_gradient
        self._hooks: list[Any] = []
        self._last_gradient: Any = None
        self._waited = -self._waited_for_data(0.0)
        self._marks = [("data", self._now())]

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _waited_for_data(self, unknown: float) -> float:
        return getattr(self._loop, "waited_for_data", unknown)

    def begin(self, part: str) -> None:
        if self._hooks:
            self._end_backward()
        if part == "forward":
            self._waited += self._waited_for_data(math.inf)
        elif part == "backward":
            trained = [parameter for parameter in self._shared if parameter.requires_grad]  # as of this backward pass
            self._hooks = [parameter.register_post_accumulate_grad_hook(self._call_at_gradient) for parameter in trained]
        self._marks.append((part, self._now()))

    def has_gradient(self) -> None:
        """Is called before DDP takes the gradient: its hook is on the graph's node that this is called in."""
        self._last_gradient = self._now()

    def _end_backward(self) -> None:
        self.take_hooks_away()
        if self._last_gradient is not None:
            self._marks.append(("communication", self._last_gradient))
        self._last_gradient = None

    def take_hooks_away(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def is_over(self) -> bool:
        return self._device.type != "cuda" or self._marks[-1][1].query()

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each of PARTS."""
        parts = dict.fromkeys(PARTS, 0.0)
        for (part, began), (_, ended) in pairwise(self._marks):
            parts[part] += began.elapsed_time(ended) / 1000 if self._device.type == "cuda" else ended - began
        between, parts["data"] = parts["data"], min(parts["data"], self._waited)
        parts["rest"] += between - parts["data"]
        return parts
