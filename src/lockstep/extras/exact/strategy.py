"""A step of V virtual workers, of which each process is some in turn: what is computed does not depend on how many processes
there are.

Each worker takes its samples of the global batch as a rank in a world of V would: shapes, random numbers and BatchNorm
statistics are its own. Gradients, and what else it leaves, are summed in one tree, so that what comes after them, clipping and
the optimizer, begins with the same bits everywhere. Logical workers are EasyScale's (Li et al., SC 2023), a fixed tree of sums is
TBIK's (arXiv 2511.17826).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lockstep.callbacks import CounterBasedRandomness
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import Batch, samples_in
from lockstep.errors import config_error
from lockstep.extras.exact.means import WorkerMeans
from lockstep.extras.exact.step import Step
from lockstep.extras.exact.tree import Vectors, local_sum, sum_over_processes
from lockstep.models.task import Task
from lockstep.trainer.lightning_internals import log_batch_as
from lockstep.trainer.strategies import PlannedWorldSize


class Exact(PlannedWorldSize, DDPStrategy):
    """Trains and evaluates as `workers` virtual workers, without DistributedDataParallel around the model. Of callbacks it calls
    `on_worker_start(worker, share)` and `on_worker_output(output)` around each worker's step, where they have these.

    Args:
        workers: a power of two, which the number of processes divides.
        threads: of each process. On a CPU another number of threads makes sums in another order.
    """

    serves_one_process = has_same_bits = True

    def __init__(self, *, world_size: int, timeout: float, process_group_backend: str | None, workers: int, threads: int) -> None:
        super().__init__(timeout=timedelta(seconds=timeout), process_group_backend=process_group_backend)
        self.planned_world_size, self.workers, self.threads = world_size, workers, threads
        self._worker: int | None = None  # within its training step
        self._step: Step | None = None  # whose backward pass is next

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """A process's share of the data; within a worker's training step the worker's, for what draws random numbers."""
        if self._worker is None:
            return super().distributed_sampler_kwargs
        return {"num_replicas": self.workers, "rank": self._worker}

    def setup_environment(self) -> None:
        super().setup_environment()
        torch.set_num_threads(self.threads)

    def setup(self, trainer: Trainer) -> None:
        """Raises ConfigError for a model or data that can't be divided among virtual workers."""
        model: Any = self.lightning_module
        if not model.automatic_optimization:
            needs = f"{type(model).__name__} optimizes by itself; accepted is a model with automatic optimization, or null"
            raise config_error("trainer.exact", self.workers, needs)
        datamodule = getattr(trainer, "datamodule", None)
        if not isinstance(datamodule, DataModule):
            needs = "divides the batches of a lockstep.datamodules.DataModule; accepted is one, or null"
            raise config_error("trainer.exact", self.workers, needs)
        callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        self._randomness = next(one for one in callbacks if isinstance(one, CounterBasedRandomness))
        self._means = next(one for one in callbacks if isinstance(one, WorkerMeans))
        super().setup(trainer)

    @torch.no_grad()
    def configure_ddp(self) -> None:
        """All processes begin with rank zero's weights and buffers, as DistributedDataParallel has them begin."""
        model: Any = self.lightning_module
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)

    def training_step(self, batch: Any, *rest: Any) -> Any:
        """Does the forward and the backward pass of each of this process's workers. Returns what the first worker's training_step
        returns, with the loss of all workers in the place of its own."""
        model: Any = self.lightning_module
        step = Step(model, self.workers)
        output: Any = None

        def leaf(index: int) -> Vectors:
            nonlocal output
            step.begin()
            share, loss = self._training_share(batch, index), None
            if samples_in(share):
                with self._as_worker(index, share):
                    output, loss = self._train(share, batch, rest)
            return step.leaf(loss, is_first=self._number(index) == 0)

        step.take(sum_over_processes(local_sum(self._own_workers, leaf)))
        self._randomness.on_train_batch_start(model.trainer, model, batch, self._batch_idx)
        self._step, loss = step, step.loss.to(torch.get_default_dtype())
        return output | {"loss": loss} if isinstance(output, dict) else loss

    def _train(self, share: Any, batch: Any, rest: Any) -> tuple[Any, Tensor]:
        model: Any = self.lightning_module
        with self.precision_plugin.train_step_context():
            output = model.training_step(share, *rest)
        self._call("on_worker_output", output)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is None:
            raise RuntimeError("training_step has returned None: with trainer.exact a batch can't be left out")
        if isinstance(batch, Batch) and not isinstance(model, Task):  # a Task weights its samples by batch.loss_weight
            loss = loss * (samples_in(share) * share.loss_weight)
        scaler: Any = getattr(self.precision_plugin, "scaler", None)
        self.precision_plugin.backward(loss if scaler is None else scaler.scale(loss), model, None)
        return output, loss

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the hooks around a backward pass; what it would compute is there already."""
        model: Any = self.lightning_module
        assert self._step is not None
        self.precision_plugin.pre_backward(closure_loss, model)
        self._step.write_gradients()
        return self.precision_plugin.post_backward(closure_loss, model)

    def validation_step(self, batch: Any, *rest: Any) -> Any:
        return self._evaluate("validation_step", batch, rest)

    def test_step(self, batch: Any, *rest: Any) -> Any:
        return self._evaluate("test_step", batch, rest)

    def _evaluate(self, name: str, batch: Any, rest: Any) -> Any:
        """Returns what the model returns, in the order of the batch's samples where that is a tensor with a row for each."""
        model: Any = self.lightning_module
        context: Callable[[], Any] = getattr(self.precision_plugin, name.replace("validation", "val") + "_context")
        outputs: list[Any] = []
        for index in range(self._own_workers):
            share = self._share(batch, index)
            if samples_in(share):
                self._call("on_worker_start", self._number(index), share)
                with self._means.of(index, name), self._logged_as(share), context():
                    outputs.append(getattr(model, name)(share, *rest))
                self._call("on_worker_output", outputs[-1])
        return self._in_order(outputs, samples_in(batch))

    def _in_order(self, outputs: list[Any], samples: int | None) -> Any:
        if not outputs or not all(isinstance(output, Tensor) and output.ndim for output in outputs):
            return outputs[0] if outputs else None
        if sum(map(len, outputs)) != samples:
            return outputs[0]
        whole = outputs[0].new_empty(samples, *outputs[0].shape[1:])
        for index, output in enumerate(outputs):
            whole[index :: self._own_workers] = output
        return whole

    @property
    def _own_workers(self) -> int:
        return self.workers // self.world_size

    def _number(self, index: int) -> int:
        """Of all workers; its samples are the global batch's `number`-th, `number + V`-th, ..., of which the process has each
        N-th."""
        return self.global_rank + index * self.world_size

    def _share(self, batch: Any, index: int) -> Any:
        """What a worker has of this process's batch, as new tensors: their place in memory then is that of any other number of
        processes, too."""
        samples, own = samples_in(batch), self._own_workers

        def cut(tensor: Tensor) -> Tensor:
            return tensor[index::own].clone(memory_format=torch.contiguous_format) if tensor.shape[:1] == (samples,) else tensor

        return apply_to_collection(batch, Tensor, cut)

    def _training_share(self, batch: Any, index: int) -> Any:
        """Its samples weigh as many times as much in the mean over workers as in that over processes."""
        share = self._share(batch, index)
        return share._replace(loss_weight=share.loss_weight * self._own_workers) if isinstance(share, Batch) else share

    @property
    def _batch_idx(self) -> int:
        trainer: Any = self.lightning_module.trainer  # pyright: ignore[reportOptionalMemberAccess]
        return trainer.fit_loop.batch_idx

    @contextmanager
    def _as_worker(self, index: int, share: Any) -> Iterator[None]:
        model: Any = self.lightning_module
        self._worker = self._number(index)
        self._randomness.on_train_batch_start(model.trainer, model, share, self._batch_idx)
        with ExitStack() as stack:
            stack.callback(setattr, self, "_worker", None)
            stack.enter_context(self._means.of(index, "training_step"))
            stack.enter_context(self._logged_as(share))
            self._call("on_worker_start", self._worker, share)
            yield

    def _call(self, hook: str, *arguments: Any) -> None:
        """Calls a hook that Lightning does not know, on the callbacks that have it."""
        trainer: Any = self.lightning_module.trainer  # pyright: ignore[reportOptionalMemberAccess]
        for callback in trainer.callbacks:
            getattr(callback, hook, lambda *_: None)(*arguments)

    @contextmanager
    def _logged_as(self, share: Any) -> Iterator[None]:
        """What is logged in a step counts as of the worker's samples in an epoch's mean."""
        trainer: Any = self.lightning_module.trainer  # pyright: ignore[reportOptionalMemberAccess]
        log_batch_as(trainer, samples_in(share) or 0)
        yield
