"""The states of torchmetrics, worker by worker."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from lockstep.callbacks.forked import Forked
from lockstep.datamodules.batches import leaves
from lockstep.errors import config_error
from lockstep.plain_lightning.processes import all_ranks
from lockstep.runs.results import Records

States = dict[str, Any]  # a metric's, by name: tensors, or lists of them
_COUNT = "_update_count"  # an attribute of metrics; the public `update_count` can't be set


class WorkerMetrics(Records):
    """Give every torchmetrics.Metric of the model states of its own for each virtual worker, as in each process of a world of so
    many. At the end of an epoch, or of a validation loader, gather them in all processes, and reduce them as torchmetrics
    does."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._metrics: dict[str, Metric] = {}
        self._own: list[dict[str, States]] = []  # for each of this process's workers, the metrics that it has updated
        self._is_merged = False
        self._hash: str | None = None

    def facts(self) -> dict[str, Any]:
        return {"exact": self.workers, "exact_hash": self._hash}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hash weights, buffers and the states of optimizers: two runs that end with the same bits record the same."""
        if trainer.is_global_zero:
            states = {"model": pl_module.state_dict()} | {str(n): one.state_dict() for n, one in enumerate(trainer.optimizers)}
            self._hash = _hash_of(states)

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._own = [{} for _ in range(self.workers // trainer.world_size)]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._find(pl_module)

    def on_validation_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._find(pl_module)
        trainer.strategy.evaluated = 0

    def on_test_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)

    def _find(self, model: LightningModule) -> None:
        self._metrics = {name: module for name, module in model.named_modules() if isinstance(module, Metric)}
        for metric in self._metrics.values():
            metric.distributed_available_fn = _never  # this class merges the processes

    def begin_step(self) -> None:
        """Forget the states of metrics that were reset."""
        self._is_merged = False
        for name in [name for name, metric in self._metrics.items() if not metric.update_called]:
            for states in self._own:
                states.pop(name, None)

    @contextmanager
    def worker(self, index: int) -> Iterator[None]:
        """Give metrics the states of this process's worker of that index until the block exits."""
        for name, metric in self._metrics.items():
            _write(metric, self._own[index].get(name) or _defaults(metric))
        yield
        self._own[index] = {name: _read(metric) for name, metric in self._metrics.items() if metric.update_called}

    def end_step(self) -> None:
        """Leave metrics as the first worker has them, with the number of updates of all workers: 0 is a metric that was reset."""
        for name, metric in self._metrics.items():
            _write(metric, self._own[0].get(name) or _defaults(metric))
            setattr(metric, _COUNT, sum(states[name][_COUNT] for states in self._own if name in states))

    def merge(self) -> None:
        """Give every process the states of all workers, reduced; a collective."""
        if self._is_merged:
            return
        self._is_merged = True
        everyone = self._everyone()
        for name, metric in self._metrics.items():
            if any(name in states for states in everyone):
                _write(metric, _merged(metric, [states.get(name) or _defaults(metric) for states in everyone]))

    def _everyone(self) -> list[dict[str, States]]:
        """Return the states of all workers, in the workers' order; a collective."""
        ranks = all_ranks(apply_to_collection(self._own, Tensor, Tensor.cpu))
        return [ranks[worker % len(ranks)][worker // len(ranks)] for worker in range(self.workers)]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["exact"] = {"workers": self.workers}

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raise ConfigError if a run that is resumed, not forked, had another number of workers."""
        if trainer.state.fn != "fit":
            return
        saved = checkpoint.get("exact", {"workers": "null"})["workers"]
        is_forked = any(isinstance(callback, Forked) for callback in trainer.callbacks)
        if saved != self.workers and not is_forked:
            raise config_error("trainer.exact", self.workers, f"the checkpoint is of {saved}; use the same, or fork=")


def _hash_of(states: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in leaves(states, ""):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _never() -> bool:
    return False


def _defaults(metric: Metric) -> States:
    values = metric._defaults.items()
    return {name: value.clone() if isinstance(value, Tensor) else [] for name, value in values} | {_COUNT: 0}


def _read(metric: Metric) -> States:
    return {name: getattr(metric, name) for name in (*metric._defaults, _COUNT)}


def _write(metric: Metric, states: States) -> None:
    for name, value in apply_to_collection(states, Tensor, Tensor.to, metric.device).items():
        setattr(metric, name, value)
    metric._computed = None


def _merged(metric: Metric, workers: list[States]) -> States:
    """Return the states of one worker that stand for those of all."""
    merged: States = {_COUNT: sum(states[_COUNT] for states in workers)}
    reductions: dict[str, Any] = metric._reductions
    for name, reduce in reductions.items():
        values = [states[name] for states in workers]
        if isinstance(values[0], list):
            every = [tensor for value in values for tensor in value]
            merged[name] = [reduce(every)] if every and reduce is not None else every
        else:
            merged[name] = torch.stack(values) if reduce is None else reduce(torch.stack(values))
    return merged
