"""An epoch's means, summed worker by worker and then in the one tree."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from lockstep.errors import config_error
from lockstep.extras.exact.tree import sum_of_rows
from lockstep.models.sample_mean import SampleMean
from lockstep.models.task import Task

log = logging.getLogger(__name__)

_MEANS = {"training_step": "train_means", "validation_step": "val_means", "test_step": "test_means"}  # of a Task
_STATES = ("sums", "count")


class WorkerMeans(Callback):
    """For a Task, whose means of an epoch are sums over samples: each virtual worker has sums of its own, which are added up when
    the epoch ends.

    What a model logs by `self.log`, and torchmetrics whose states are no sums of whole numbers, is reduced as on so many
    processes: equal up to rounding at another number of them.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._rows: dict[str, list[dict[str, Tensor]]] = {}  # by step, of each of this process's workers
        self._means: dict[str, SampleMean] = {}

    def facts(self) -> dict[str, int]:
        return {"exact": self.workers}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        each = self.workers // trainer.world_size
        log.info(
            f"{self.workers} virtual workers, {each} in each process: the same bits on any number of processes that divides them"
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._means = {step: getattr(pl_module, name) for step, name in _MEANS.items()} if isinstance(pl_module, Task) else {}
        own = self.workers // trainer.world_size
        self._rows = {step: [_zeros(means) for _ in range(own)] for step, means in self._means.items()}

    @contextmanager
    def of(self, index: int, step: str) -> Iterator[None]:
        """Within, this process's worker of that index adds to sums of its own."""
        means = self._means.get(step)
        if means is None:
            yield
            return
        _write(means, {name: state.to(means.sums.device) for name, state in self._rows[step][index].items()})
        yield
        self._rows[step][index] = {name: getattr(means, name) for name in _STATES}
        _write(means, _zeros(means))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add_up(trainer, "training_step")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add_up(trainer, "validation_step")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add_up(trainer, "test_step")

    def _add_up(self, trainer: Trainer, step: str) -> None:
        """Rank zero then has all of it, and the others nothing: what the ranks are added up to is exact."""
        if (means := self._means.get(step)) is None:
            return
        total = {name: sum_of_rows(rows) for name, rows in self._all_rows(trainer, step).items()}
        _write(means, total if trainer.is_global_zero else _zeros(means))
        self._rows[step] = [_zeros(means) for _ in self._rows[step]]

    def _all_rows(self, trainer: Trainer, step: str) -> dict[str, Tensor]:
        """Those of all workers, (workers, ...); a collective."""
        own = {name: torch.stack([row[name] for row in self._rows[step]]) for name in _STATES}
        if trainer.world_size == 1:
            return own
        # of a process the rows are of every N-th worker
        return {name: torch.stack(gather_all_tensors(rows), dim=1).flatten(0, 1) for name, rows in own.items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["exact"] = {"workers": self.workers}
        if trainer.state.fn == "fit" and self._means:
            rows = self._all_rows(trainer, "training_step")
            checkpoint["exact"] |= {name: state.cpu() for name, state in rows.items()}

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raises ConfigError where a run that is resumed, not forked, had another number of workers."""
        if trainer.state.fn != "fit":
            return
        saved = checkpoint.get("exact", {"workers": None})
        is_same = saved["workers"] == self.workers
        if not is_same and trainer.datamodule.find_place is None:
            before = "null" if saved["workers"] is None else saved["workers"]
            raise config_error("trainer.exact", self.workers, f"the checkpoint is of {before}; accepted is the same, or fork=")
        if is_same and self._means and "sums" in saved:
            own = range(trainer.global_rank, self.workers, trainer.world_size)
            self._rows["training_step"] = [{name: saved[name][worker].clone() for name in _STATES} for worker in own]


def _zeros(means: SampleMean) -> dict[str, Tensor]:
    return {name: torch.zeros_like(getattr(means, name)) for name in _STATES}


def _write(means: SampleMean, states: dict[str, Tensor]) -> None:
    for name, state in states.items():
        setattr(means, name, state)
