"""What switches a cause off in a training, in its ranks, beyond its config.

Those that see each batch wrap the model's training_step: so they know nothing of loaders.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lockstep.extras.parity.differences import all_ranks
from lockstep.extras.parity.interventions import count_tokens, in_parts, time_first, wrap
from lockstep.extras.parity_causes.draws import constant_draws
from lockstep.trainer.batchnorm import OverAllProcesses

_CHANGING = ("training_step", "on_train_batch_end", "on_train_epoch_end", "on_validation_epoch_end")  # may change buffers


@contextmanager
def switched_off(interventions: Mapping[Any, Any], model: LightningModule, world_size: int = 1) -> Iterator[None]:
    """Within, the model, which is trained by so many processes, trains without what these switch off on both sides:

    parts       [samples, accumulated, ranks]: one process's batches in the parts that several have, in evaluation too
    still       buffers are left as they are
    summed      losses are multiplied by the number of processes and accumulated batches, over which they are averaged
    batch_first layers that take time as the first axis take the samples as it
    norms       torch's batch_norm is that of all processes' samples, whoever calls it
    tokens      losses are weighted by the tokens of each process
    no_dropout  nothing is dropped
    constant    {library: True}: draws give one number; torch, numpy, Python
    """
    if "parts" in interventions and world_size == 1:
        size, accumulated, ranks = interventions["parts"]
        parts = functools.partial(_parts, size=size, ranks=ranks)
        wrap(model, functools.partial(in_parts, model, parts, accumulated * ranks))
        for step in ("validation_step", "test_step"):
            wrap(model, functools.partial(in_parts, model, parts, 0), step)
    if "still" in interventions:
        for step in _CHANGING:
            wrap(model, functools.partial(_still, model), step)
    if "summed" in interventions:
        wrap(model, functools.partial(_times_parts, model, world_size))
    if "batch_first" in interventions:
        for layer in time_first(model):
            layer.batch_first = True  # pyright: ignore[reportArgumentType]
    if "norms" in interventions and world_size > 1:
        wrap(model, _synchronised)
    if "tokens" in interventions and world_size > 1:
        wrap(model, _weight_by_tokens)
    with ExitStack() as stack:
        if "no_dropout" in interventions:
            stack.enter_context(without_dropout(model))
        stack.enter_context(constant_draws(interventions.get("constant", ())))
        yield


def _parts(n: int, size: int, ranks: int) -> list[tuple[Tensor, float]]:
    """Returns which of n samples each process has of each of the batches, of this size, that are accumulated; and how much the
    gradient of a loss without a weight of its own counts in the mean over processes."""
    chunks = [(chunk, chunk[rank::ranks]) for chunk in torch.arange(n).split(size) for rank in range(min(ranks, len(chunk)))]
    return [(part, ranks * len(part) / len(chunk)) for chunk, part in chunks]


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
