"""What is done to a training, in its ranks, beyond its config.

Those that see each batch wrap the model's training_step: so they know nothing of loaders.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from hydra.utils import get_method
from lightning import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from lockstep.counter_rng import derive_seed
from lockstep.datamodules.batches import Batch
from lockstep.extras.any_batch.any_batch import leaves, samples_in
from lockstep.extras.plain_lightning.lightning_internals import log_batch_as
from lockstep.nets import Dropout
from lockstep.trainer.lightning_internals import is_attached

_ROUNDING_OF_A_SUM = 64  # units in the last place: gradients in other orders of the samples differ by up to about as many
_IGNORED = -100  # torch's ignore_index: a target that counts for no loss


@contextmanager
def applied(interventions: Mapping[Any, Any], model: LightningModule, world_size: int = 1) -> Iterator[None]:
    """Within, the model, which is trained by so many processes, trains with these.

    A control, which trains as the reference does but rounds otherwise, has one of these, with a number that says how:

        permuted    each batch in another order: the rounding of sums changes, nothing else
        noise       rounding imitated, in the gradients (by the recorder)

    A reference of one process whose batches have no size in the config has:

        larger_batches  the number of processes whose batches its loaders take as one (by larger_batches.py)

    Both sides may have these:

        rates       the reference's learning rates are taken (by the recorder)
        by          the full name of what applies the others: a context manager that is called as this one is
    """
    if "permuted" in interventions:
        generator = torch.Generator().manual_seed(derive_seed(interventions["permuted"]))
        wrap(model, functools.partial(in_parts, model, lambda n: [(torch.randperm(n, generator=generator), 1.0)], 1))
    with ExitStack() as stack:
        if "by" in interventions:
            stack.enter_context(get_method(interventions["by"])(interventions, model, world_size))
        yield


def wrap(model: LightningModule, around: Callable[..., Any], name: str = "training_step") -> None:
    """Puts `around(step, *arguments)` in the place of one of the module's steps or hooks."""
    step = getattr(model, name)
    setattr(model, name, functools.wraps(step)(functools.partial(around, step)))


def index_batch(batch: Any, order: Tensor) -> Any:
    """Returns these samples of the batch, in this order."""
    n = samples_in(batch)
    return apply_to_collection(batch, Tensor, lambda leaf: leaf[order.to(leaf.device)] if leaf.shape[:1] == (n,) else leaf)


@contextmanager
def index_dropout(model: nn.Module, order: Tensor) -> Iterator[None]:
    """Within, dropout that knows a batch's samples drops those of these ones, in this order."""
    layers = [(layer, layer.keys) for layer in model.modules() if isinstance(layer, Dropout) and layer.keys is not None]
    for layer, keys in layers:
        layer.keys = keys[order.to(keys.device)]
    yield
    for layer, keys in layers:
        layer.keys = keys


def in_parts(
    model: LightningModule,
    parts: Callable[[int], list[tuple[Tensor, float]]],
    number: int,
    step: Callable[..., Any],
    batch: Any,
    *rest: Any,
    **kwargs: Any,
) -> Any:
    """Returns the mean of what the step returns for this number of parts, as processes and accumulated batches average it; for
    no number, in evaluation, what it returns for the last."""
    outputs: list[Any] = []
    weights: list[float] = []
    for order, weight in parts(samples_in(batch) or 0):
        part = index_batch(batch, order)
        if isinstance(part, Batch):
            part = part._replace(loss_weight=part.loss_weight * max(1, number))
        weights.append(1.0 if isinstance(part, Batch) else weight)
        if is_attached(model) and len(order) < (samples_in(batch) or 0):
            log_batch_as(model.trainer, len(order))
        with index_dropout(model, order):
            outputs.append(step(part, *rest, **kwargs))
    losses: list[Any] = [output.get("loss") if isinstance(output, dict) else output for output in outputs]
    if not (number and losses) or any(loss is None for loss in losses):
        return outputs[-1] if outputs else None
    loss = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / number
    return outputs[-1] | {"loss": loss} if isinstance(outputs[-1], dict) else loss


def time_first(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that take batches as (time, samples, features), by default torch's recurrent and attention layers."""
    return [layer for layer in model.modules() if getattr(layer, "batch_first", None) is False]


def count_tokens(batch: Any) -> dict[str, tuple[int, int]]:
    """Returns of each tensor of integers how many are targets, and how many are torch's ignore_index."""
    integers = [(name, leaf) for name, leaf in leaves(batch) if leaf.dtype == torch.int64]
    return {name: (int((leaf != _IGNORED).sum()), int((leaf == _IGNORED).sum())) for name, leaf in integers}


@torch.no_grad()
def add_rounding(optimizer: torch.optim.Optimizer, number: int, step: int) -> None:
    """Imitates what the rounding of sums does to gradients: noise of some units of their largest value's last place."""
    generator = torch.Generator().manual_seed(derive_seed(number, step))
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        gradient = parameter.grad
        if gradient is not None and gradient.layout == torch.strided and gradient.numel():
            size = _ROUNDING_OF_A_SUM * torch.finfo(gradient.dtype).eps * gradient.abs().max()
            gradient += (size * torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype)).to(gradient.device)
