"""A step of V virtual workers, shared out over processes: its results do not depend on the number of processes.

Each worker takes its samples of the global batch as a rank in a world of V would: shapes, random numbers and BatchNorm statistics
are its own. Gradients and states are summed in one tree, so that what comes after them, clipping and the optimizer, begins with
the same bits everywhere. Virtual workers are EasyScale's (Li et al., SC 2023), a fixed tree of sums is TBIK's (arXiv 2511.17826).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from lockstep.callbacks import CounterBasedRandomness
from lockstep.errors import config_error
from lockstep.exact.loaders import Share, shares_of_workers
from lockstep.exact.metrics import WorkerMetrics
from lockstep.exact.step import Step
from lockstep.exact.tree import Tensors, local_sum, sum_over_processes
from lockstep.strategies.ddp import PlannedWorldSize
from lockstep.trainer.lightning_internals import log_batch_as

_TRANSFER, _EVALUATION = 1 << 40, 1 << 41  # streams of random numbers, apart from those of training steps


class Exact(PlannedWorldSize, DDPStrategy):
    """Train and evaluate as `workers` virtual workers, without DistributedDataParallel around the model.

    Args:
        workers: a power of two, which the number of processes divides.

    Attributes:
        shares: of the batch, for this process's workers.
    """

    has_same_bits = True

    def __init__(self, *, world_size: int, timeout: float, process_group_backend: str | None, workers: int) -> None:
        super().__init__(timeout=timedelta(seconds=timeout), process_group_backend=process_group_backend)
        if workers % world_size:
            raise config_error(
                "trainer.devices", world_size, f"does not divide trainer.exact={workers}; use a divisor of {workers}"
            )
        self.planned_world_size, self.workers = world_size, workers
        torch.set_num_threads(1)  # another number adds in another order on a CPU, also when weights are drawn
        self.shares: list[Share] = []
        self.evaluated = 0  # batches, since the evaluation has begun
        self._worker: int | None = None  # the worker whose random numbers are drawn
        self._is_within_step = False  # True in a worker's step
        self._step: Step | None = None  # the step whose backward pass is next

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the process's share of the data; for random draws in a worker's training step, the worker's."""
        if self._worker is None:
            return super().distributed_sampler_kwargs
        return {"num_replicas": self.workers, "rank": self._worker}

    def setup_environment(self) -> None:
        super().setup_environment()
        torch.set_num_threads(1)  # Lightning has set as many as each process has cores

    def setup(self, trainer: Trainer) -> None:
        """Raise ConfigError for a model that can't be divided among virtual workers."""
        callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        if not trainer.lightning_module.automatic_optimization:
            why = (
                f"{type(trainer.lightning_module).__name__} has automatic_optimization=False, and steps its optimizers before "
                "the gradients of the other virtual workers are there; use a model with automatic optimization, or null"
            )
            raise config_error("trainer.exact", self.workers, why)
        self._randomness = next(one for one in callbacks if isinstance(one, CounterBasedRandomness))
        self._metrics = next(one for one in callbacks if isinstance(one, WorkerMetrics))
        super().setup(trainer)

    @torch.no_grad()
    def configure_ddp(self) -> None:
        """Broadcast rank zero's weights and buffers, with which all processes begin, as DistributedDataParallel does."""
        model: Any = self.lightning_module
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """Return the first worker's batch, for the hooks around a step, if the loaders have divided it, as not for a
        prediction."""
        shares = shares_of_workers(batch, self._own_workers)
        if shares is None:
            return super().batch_to_device(batch, device, dataloader_idx)
        self.shares = []
        for index, share in enumerate(shares):
            self._count_draws(self._number(index), _TRANSFER)
            moved = None if share.batch is None else super().batch_to_device(share.batch, device, dataloader_idx)
            self.shares.append(share._replace(batch=moved))
        return self.shares[0].batch

    def training_step(self, batch: Any, *rest: Any) -> Any:
        """Run the forward and the backward pass of each of this process's workers. Return the output of the first worker's
        training_step, with the loss of all workers in place of its own. A worker that returns None has left its batch out; if all
        have, there are no gradients, and the optimizer changes nothing."""
        model: Any = self.lightning_module
        step = Step(model, self.workers)
        output: Any = None

        def work(index: int) -> Tensor | None:
            nonlocal output
            step.begin()
            share, loss = self.shares[index], None
            if share.samples:
                with self._as_worker(index, share), self._numbered(self._number(index)):
                    self._randomness.begin(model.trainer, model.trainer.fit_loop.batch_idx)
                    self._randomness.on_train_batch_start(model.trainer, model, share.batch, model.trainer.fit_loop.batch_idx)
                    output, loss = self._train(share, rest)
            return loss

        def leaf(index: int) -> Tensors:
            return step.leaf(work(index), self._number(index) == 0, self._trainer._logger_connector.has_synced)

        self._metrics.begin_step()
        step.take(sum_over_processes(local_sum(self._own_workers, leaf)))
        self._metrics.end_step()
        if step.has_logged:
            self._trainer._logger_connector.sync_step()
        self._count_draws(self.workers)  # hooks and the optimizer draw the same in all processes
        self._step, loss = step, step.loss.to(torch.get_default_dtype())
        return output | {"loss": loss} if isinstance(output, dict) else loss

    def _train(self, share: Share, rest: Any) -> tuple[Any, Tensor | None]:
        model: Any = self.lightning_module
        with self.precision_plugin.train_step_context():
            output = model.training_step(share.batch, *rest)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is None:
            return output, None
        loss = loss * (share.samples * self.workers / share.whole)
        scaler: Any = getattr(self.precision_plugin, "scaler", None)
        self.precision_plugin.backward(loss if scaler is None else scaler.scale(loss), model, None)
        return output, loss

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Call the hooks around a backward pass; its gradients are computed already."""
        model: Any = self.lightning_module
        assert self._step is not None
        self.precision_plugin.pre_backward(closure_loss, model)
        self._step.write_gradients()
        return self.precision_plugin.post_backward(closure_loss, model)

    def validation_step(self, batch: Any, *rest: Any) -> Any:
        return self._evaluate("validation_step", rest)

    def test_step(self, batch: Any, *rest: Any) -> Any:
        return self._evaluate("test_step", rest)

    def _evaluate(self, name: str, rest: Any) -> Any:
        """Return the first worker's outputs, which are those of the batch that the hooks have."""
        model: Any = self.lightning_module
        context: Callable[[], Any] = getattr(self.precision_plugin, name.replace("validation", "val") + "_context")
        outputs: Any = None
        self._metrics.begin_step()
        for index in reversed(range(self._own_workers)):
            share = self.shares[index]
            if share.samples:
                with self._as_worker(index, share), context():
                    self._count_draws(self._number(index), _EVALUATION)
                    outputs = getattr(model, name)(share.batch, *rest)
        self._metrics.end_step()
        self.evaluated += 1
        return outputs

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce outside of a worker's step alone: its logs with sync_dist are combined after it."""
        return tensor if self._is_within_step else super().reduce(tensor, *args, **kwargs)

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Raise ConfigError within a worker's step."""
        if not self._is_within_step:
            return super().all_gather(tensor, *args, **kwargs)
        why = f"{type(self.lightning_module).__name__} calls self.all_gather within a step, when not all virtual workers have"
        raise config_error("trainer.exact", self.workers, f"{why} computed what it would gather; use a step without, or null")

    @property
    def _own_workers(self) -> int:
        return self.workers // self.world_size

    def _number(self, index: int) -> int:
        """Return the worker's number among all workers. Its samples are the global batch's `number`-th, `number + V`-th, ..., of
        which the process has each N-th."""
        return self.global_rank + index * self.world_size

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer  # pyright: ignore[reportOptionalMemberAccess]

    @contextmanager
    def _as_worker(self, index: int, share: Share) -> Iterator[None]:
        """Count logs as of the worker's samples in an epoch's mean, and give metrics its states, until the block exits."""
        self._is_within_step = True
        try:
            with self._metrics.worker(index):
                log_batch_as(self._trainer, share.samples)
                yield
        finally:
            self._is_within_step = False
        self._trainer._logger_connector.take(self._number(index))
        log_batch_as(self._trainer, share.whole)

    @contextmanager
    def _numbered(self, worker: int) -> Iterator[None]:
        self._worker = worker
        try:
            yield
        finally:
            self._worker = None

    def _count_draws(self, worker: int, stream: int = 0) -> None:
        """Seed the generators for this worker's part of the batch."""
        trainer = self._trainer
        batch = trainer.fit_loop.batch_idx if trainer.training else self.evaluated
        with self._numbered(worker):
            self._randomness.count(trainer, batch + stream)
