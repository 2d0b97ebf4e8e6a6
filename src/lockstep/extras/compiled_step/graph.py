"""The forward pass, the loss and the backward pass of a Task's batch, compiled as one graph."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
import torch._dynamo
import torch._inductor
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch._dynamo import exc
from torch._dynamo.exc import TorchDynamoException

from lockstep.datamodules.batches import Batch
from lockstep.models.sample_mean import Sums
from lockstep.models.task import Task

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_ANEW_TOO_OFTEN: type[Exception] = getattr(exc, "FailOnRecompileLimitHit", TorchDynamoException)
_MOST = 4  # shapes of batches, each of which is a graph of its own

# Of a batch: the loss (), what is counted of it, and the gradients: one for each parameter, None for one that has none.
Outcome = tuple[Tensor, Sums, Sequence[Tensor | None]]


class StepGraph:
    """The graphs of a run's steps: of one process's own samples, so that no process depends on another's.

    A batch of another shape than those that were compiled, an epoch's last say, is computed by the same function as it is, and a
    shape that comes twice in a row is compiled. The run's first batch goes the ordinary way, its second shows whether there is
    a graph.

    Attributes:
        why_not: the steps of this run are not compiled, None as long as they are.
        why_no_more: the later ones are not, None as long as they are.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.why_not: str | None = None
        self.why_no_more: str | None = None
        self.is_first, self.has_begun = True, False  # is the next batch the run's first, and was the second one computed?
        self._shapes: set[Any] = set()
        self._latest: Any = None

    def set_up(self, model: Task, precision: Precision) -> None:
        """Of the model as it is trained: on its device, what is not trained frozen."""
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._function = _function(model, precision, self._parameters)
        is_over = self.why_no_more is not None  # since an earlier epoch
        self._compiled = self._function if is_over else compiled(self._function, self.backend, model.device)

    def give_up(self, why: str) -> None:
        if self.why_not is None:
            log.warning(f"trainer.compile_step: this run's steps are not compiled: {why}")
            self.why_not = why

    def begin(self, batch: Batch) -> Outcome | None:
        """Compiles. None where there is no graph, and nothing was computed; then `why_not` says why."""
        self.has_begun = True
        self._shapes.add(_shape(batch))
        began = time.perf_counter()
        try:
            outcome = self._compiled(batch)
        except Exception as error:  # whatever the model itself raises, it will raise again
            self.give_up(_in_one_line(error))
            return None
        log.info(f"trainer.compile_step: a step's graph was there after {time.perf_counter() - began:.1f} s")
        return outcome

    def compute(self, batch: Batch) -> Outcome:
        """By the graph of such batches, where there is one."""
        if not self._is_compiled(_shape(batch)):
            return self._function(batch)
        try:
            return self._compiled(batch)
        except (TorchDynamoException, _ANEW_TOO_OFTEN) as error:  # before anything is computed
            self.why_no_more = _in_one_line(error)
            log.warning(f"trainer.compile_step: the steps that follow are not compiled: {self.why_no_more}")
            self._compiled = self._function
            return self._function(batch)

    def as_it_is(self, batch: Batch) -> Outcome:
        """Computes the same without a graph."""
        return self._function(batch)

    def _is_compiled(self, shape: Any) -> bool:
        before, self._latest = self._latest, shape
        if shape == before and len(self._shapes) < _MOST:
            self._shapes.add(shape)
        return shape in self._shapes


def why_torch_does_not() -> str | None:
    """Returns why this torch captures no backward pass, None where it does. 2.11 leaves out what the model changes in Python."""
    does = torch.__version__ >= "2.12"
    return None if does else f"torch {torch.__version__} does not trace torch.autograd.grad, or not rightly; torch 2.12 does"


def _function(model: Task, precision: Precision, parameters: Sequence[Tensor]) -> Callable[[Batch], Outcome]:
    context = nullcontext if type(precision) is Precision else precision.train_step_context
    summed = model.train_means.summed

    def loss_values_gradients(batch: Batch) -> Outcome:
        with context():
            loss, values = model.loss_and_values(batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss.detach(), summed(values), gradients

    return loss_values_gradients


def compiled(function: Callable[P, T], backend: str, device: torch.device) -> Callable[P, T]:
    """On a GPU with CUDA graphs. Random numbers are those of torch's own kernels."""
    torch._dynamo.config.trace_autograd_ops = True
    options: dict[str, Any] = {"fallback_random": True}
    if device.type == "cuda":
        options |= torch._inductor.list_mode_options("reduce-overhead")
    else:
        options["compile_threads"] = 1  # no processes of its own: there is a file or two
    given = options if backend == "inductor" else None
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend, options=given)


def _shape(batch: Batch) -> Any:
    return batch.inputs.shape, batch.targets.shape, batch.inputs.dtype, batch.loss_weight


def _in_one_line(error: Exception) -> str:
    """The first lines of what torch says: what, and mostly why."""
    if type(error) is _ANEW_TOO_OFTEN:
        return "they would be compiled anew each time, for the model counts or collects in Python"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
