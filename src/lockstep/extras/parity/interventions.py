"""What is done to a training, in its ranks, beyond its config.

Those that see each batch wrap the model's training_step: so they know nothing of loaders.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lockstep.counter_rng import derive_seed
from lockstep.datamodules.batches import Batch, leaves, samples_in
from lockstep.extras.parity.differences import all_ranks
from lockstep.extras.parity.draws import constant_draws
from lockstep.nets import Dropout
from lockstep.trainer.batchnorm import OverAllProcesses
from lockstep.trainer.lightning_internals import is_attached, log_batch_as

_ROUNDING_OF_A_SUM = 64  # units in the last place: gradients in other orders of the samples differ by up to about as many
_CHANGING = ("training_step", "on_train_batch_end", "on_train_epoch_end", "on_validation_epoch_end")  # may change buffers
_IGNORED = -100  # torch's ignore_index: a target that counts for no loss


@contextmanager
def applied(interventions: Mapping[Any, Any], model: LightningModule, world_size: int = 1) -> Iterator[None]:
    """Within, the model trains with these. Both sides, of which this has so many processes, have these to switch a cause off:

        parts       [samples, accumulated, ranks]: one process's batches in the parts that several have, in evaluation too
        still       buffers are left as they are
        summed      losses are multiplied by the number of processes and accumulated batches, over which they are averaged
        batch_first layers that take time as the first axis take the samples as it
        norms       torch's batch_norm is that of all processes' samples, whoever calls it
        tokens      losses are weighted by the tokens of each process
        no_dropout  nothing is dropped
        constant    {library: True}: draws give one number; torch, numpy, Python
        rates       the reference's learning rates are taken (by the recorder)

    A reference of one process whose batches have no size in the config has:

        larger_batches  the number of processes whose batches its loaders take as one (by larger_batches.py)

    A control, which trains as the reference does but rounds otherwise, has one of these, with a number that says how:

        permuted    each batch in another order: the rounding of sums changes, nothing else
        noise       rounding imitated, in the gradients (by the recorder)
    """
    if "permuted" in interventions:
        generator = torch.Generator().manual_seed(derive_seed(interventions["permuted"]))
        _wrap(model, functools.partial(_in_parts, model, lambda n: [(torch.randperm(n, generator=generator), 1.0)], 1))
    if "parts" in interventions and world_size == 1:
        size, accumulated, ranks = interventions["parts"]
        parts = functools.partial(_parts, size=size, ranks=ranks)
        _wrap(model, functools.partial(_in_parts, model, parts, accumulated * ranks))
        for step in ("validation_step", "test_step"):
            _wrap(model, functools.partial(_in_parts, model, parts, 0), step)
    if "still" in interventions:
        for step in _CHANGING:
            _wrap(model, functools.partial(_still, model), step)
    if "summed" in interventions:
        _wrap(model, functools.partial(_times_parts, model, world_size))
    if "batch_first" in interventions:
        for layer in time_first(model):
            layer.batch_first = True  # pyright: ignore[reportArgumentType]
    if "norms" in interventions and world_size > 1:
        _wrap(model, _synchronised)
    if "tokens" in interventions and world_size > 1:
        _wrap(model, _weight_by_tokens)
    with ExitStack() as stack:
        if "no_dropout" in interventions:
            stack.enter_context(without_dropout(model))
        stack.enter_context(constant_draws(interventions.get("constant", ())))
        yield


def _wrap(model: LightningModule, around: Callable[..., Any], name: str = "training_step") -> None:
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


def _parts(n: int, size: int, ranks: int) -> list[tuple[Tensor, float]]:
    """Returns which of n samples each process has of each of the batches, of this size, that are accumulated; and how much the
    gradient of a loss without a weight of its own counts in the mean over processes."""
    chunks = [(chunk, chunk[rank::ranks]) for chunk in torch.arange(n).split(size) for rank in range(min(ranks, len(chunk)))]
    return [(part, ranks * len(part) / len(chunk)) for chunk, part in chunks]


def _in_parts(
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


def _still(model: LightningModule, step: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
    """Makes a step that leaves buffers as they have been, those that it has put in the place of others too."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    output = step(*arguments, **kwargs)
    with torch.no_grad():
        for module, name, buffer, value in before:
            setattr(module, name, buffer)
            buffer.copy_(value)
    return output


def _times_parts(model: LightningModule, world_size: int, step: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
    return _scale(step(*arguments, **kwargs), world_size * model.trainer.accumulate_grad_batches)


def _scale(output: Any, factor: float) -> Any:
    """Returns what a step has returned, with its loss times the factor."""
    if output is None:
        return None
    return output | {"loss": output["loss"] * factor} if isinstance(output, dict) else output * factor


def time_first(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that take batches as (time, samples, features), by default torch's recurrent and attention layers."""
    return [layer for layer in model.modules() if getattr(layer, "batch_first", None) is False]


def _synchronised(step: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
    with OverAllProcesses():
        return step(*arguments, **kwargs)


def _weight_by_tokens(step: Callable[..., Any], batch: Any, *rest: Any, **kwargs: Any) -> Any:
    """Makes the mean over a process's tokens its share of a mean over those of all processes."""
    everyone = all_ranks(count_tokens(batch))
    padded = {name for counts in everyone for name, (_, ignored) in counts.items() if ignored}
    total = sum(kept for counts in everyone for name, (kept, _) in counts.items() if name in padded)
    own = sum(kept for name, (kept, _) in everyone[dist.get_rank()].items() if name in padded)
    return _scale(step(batch, *rest, **kwargs), len(everyone) * own / max(1, total))


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


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Nothing is dropped by torch's dropout functions, nor by the modules that call them or drop by themselves."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    with _NoDropout():
        yield


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention and len(args) > 4:  # query, key, value, attn_mask, dropout_p
            args = (*args[:4], 0.0, *args[5:])
        return func(*args, **(kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs))
