"""The loop over an epoch's batches whose plain steps take their gradients from a graph."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from torch import Tensor

from lockstep.datamodules.batches import Batch
from lockstep.extras.compiled_step.graph import Outcome, StepGraph, why_torch_does_not
from lockstep.extras.fast_loop.epoch_loop import EpochLoop, PlainStep
from lockstep.extras.fast_loop.plain import is_replaced
from lockstep.models.task import Task


def install_compiled_steps(trainer: Any, backend: str) -> None:
    """Gives a trainer that has not trained yet the loop of this module."""
    stock = trainer.fit_loop.epoch_loop
    trainer.fit_loop.epoch_loop = CompiledEpochLoop(trainer, stock.min_steps, stock.max_steps, StepGraph(backend))


class CompiledEpochLoop(EpochLoop):
    """EpochLoop, with a graph in its plain steps. Where there is none they are those of EpochLoop, and why is said once."""

    def __init__(self, trainer: Any, min_steps: int | None, max_steps: int, graph: StepGraph) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self.graph = graph

    def plain_step(self) -> PlainStep:
        return CompiledStep(self, self.graph)

    def leave_to_lightning(self, why: str | None) -> None:
        if why is not None:
            self.graph.give_up(f"{why}, and Lightning's own loop makes them")


class CompiledStep(PlainStep):
    """A plain step whose forward pass, loss and backward pass are a graph's. The gradients of several processes are averaged
    after it, in one all-reduce, without DDP's buckets and hooks. Clipping, the optimizer and all hooks are as ever, but that
    `on_before_backward` is called when the backward pass is over, with a loss that can't be differentiated: a callback that has
    it keeps the steps from being compiled, unless it says by an attribute, `may_look_late`, that this is enough."""

    def __init__(self, loop: CompiledEpochLoop, graph: StepGraph) -> None:
        super().__init__(loop)
        self.graph = graph
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.world_size: int = self.trainer.world_size
        if graph.why_not is None and (why := why_torch_does_not() or _why_not(self.trainer, self.model, self.parameters)):
            graph.give_up(why)
        if graph.why_not is None:
            graph.set_up(self.task, self.precision)

    @property
    def task(self) -> Task:
        assert isinstance(self.model, Task)
        return self.model

    def _differentiate(self, batch: Any, batch_idx: int) -> ClosureResult:
        is_first, self.graph.is_first = self.graph.is_first, False
        if is_first or self.graph.why_not is not None:
            return super()._differentiate(batch, batch_idx)
        if self.model.device.type == "cuda":
            for parameter in self.parameters:
                parameter.grad = None  # it is in memory that the graph is about to use again
        outcome = self.graph.compute(batch) if self.graph.has_begun else self._begin(batch)
        if outcome is None:
            return super()._differentiate(batch, batch_idx)
        loss, sums, gradients = outcome
        self.task.count_values(batch, sums)
        self._zero_grad()
        for parameter, gradient in zip(self.parameters, self._averaged(gradients), strict=True):
            parameter.grad = gradient
        self._call("on_before_backward", loss)
        self._call("on_after_backward")
        return ClosureResult(loss)

    def _begin(self, batch: Batch) -> Outcome | None:
        """Compiles, in all processes or in none: those that go on without a graph go on with DDP."""
        before = [buffer.clone() for buffer in self.model.buffers()] if self.world_size > 1 else []
        outcome = self.graph.begin(batch)
        if self.world_size == 1:
            return outcome
        if outcome is not None and (why := self._why_not_shared(outcome, before)):
            self.graph.give_up(why)
        if not self.strategy.reduce_boolean_decision(self.graph.why_not is None, all=True):
            self.graph.give_up("another process has none")
        return self.graph.as_it_is(batch) if outcome is None else outcome  # a step of DDP's would wait for all to make one

    def _why_not_shared(self, outcome: Outcome, before: Sequence[Tensor]) -> str | None:
        names = [name for name, _ in self.model.named_buffers()]
        changed = [name for name, old, new in zip(names, before, self.model.buffers(), strict=True) if not torch.equal(old, new)]
        if changed:  # DDP takes rank zero's at the next step
            return f"each of several processes has {changed[0]} of its own samples"
        if any(gradient is None for gradient in outcome[2]):
            return "a parameter has no gradient"
        return None

    def _averaged(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Over all processes."""
        if self.world_size == 1:
            return gradients
        given = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, gradients, strict=True)]
        flat = torch.cat([gradient.reshape(-1) for gradient in given]).div_(self.world_size)
        dist.all_reduce(flat, group=self.strategy.model.process_group)
        parts = flat.split([gradient.numel() for gradient in given])
        return [part.view(gradient.shape) for part, gradient in zip(parts, given, strict=True)]


def _why_not(trainer: Any, model: Any, parameters: Sequence[Tensor]) -> str | None:
    """Returns what needs more of a step than a graph gives."""
    if not isinstance(model, Task) or type(model).training_step is not Task.training_step:
        return f"{type(model).__name__} has a training_step of its own, which may do more than compute; accepted is a Task's"
    for callback in trainer.callbacks:
        if is_replaced("on_before_backward", callback, Callback) and not getattr(callback, "may_look_late", False):
            return f"{type(callback).__name__} acts between the forward and the backward pass"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):  # pyright: ignore[reportAttributeAccessIssue]
        return "gradients have hooks"
    if trainer.world_size == 1:
        return None
    if getattr(trainer.strategy, "communication", None) is not None or trainer.strategy._ddp_comm_hook is not None:
        return "gradients are exchanged in a way of their own, by trainer/communication"
    if trainer.strategy._ddp_kwargs.get("find_unused_parameters"):
        return "trainer.strategy.find_unused_parameters is for DDP to find"
    if len({parameter.dtype for parameter in parameters}) > 1:
        return "parameters of several types are not exchanged in one all-reduce"
    return None
