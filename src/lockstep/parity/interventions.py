"""What is done to a training, in its ranks, beyond its config.

Those that see each batch wrap the model's training_step: so they know nothing of loaders.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lockstep.counter_rng import seed_of
from lockstep.datamodules.batches import Batch, leaves, samples_in
from lockstep.nets import Dropout
from lockstep.parity.draws import constant_draws
from lockstep.parity.sides import CONSTANT, FROZEN, NO_DROPOUT, PARTS, REDUCED, STILL, TOKENS, Interventions

ROUNDING_OF_A_SUM = 64  # units in the last place: gradients in other orders of the samples differ by up to about as many
IGNORED = -100  # torch's ignore_index: a target that counts for no loss


@contextmanager
def applied(interventions: Interventions, model: LightningModule, permutation: int) -> Iterator[None]:
    """While the model trains. The permutation is that of the control's batches, 0 for none."""
    freeze(model, interventions.get(FROZEN, ()))
    if permutation:
        _wrap(model, _Permuted(model, permutation))
    if PARTS in interventions and not dist.is_initialized():
        _wrap(model, functools.partial(_in_parts, model, *interventions[PARTS]))
    if STILL in interventions:
        _wrap(model, functools.partial(_still, model))
    if REDUCED in interventions:
        model.log = functools.partial(model.log, sync_dist=True)  # pyright: ignore[reportAttributeAccessIssue]
    if TOKENS in interventions and dist.is_initialized():
        _wrap(model, _weighted_by_tokens)
    with ExitStack() as stack:
        if NO_DROPOUT in interventions:
            stack.enter_context(without_dropout(model))
        stack.enter_context(constant_draws(interventions.get(CONSTANT, ())))
        yield


def freeze(model: nn.Module, names: Any) -> None:
    """Parameters that are to be left as they are drawn."""
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(False)


def _wrap(model: LightningModule, around: Callable[..., Any]) -> None:
    """`around(step, batch, *rest)` in place of the training step."""
    step = model.training_step

    @functools.wraps(step)
    def training_step(*arguments: Any, **named: Any) -> Any:
        return around(step, *arguments, **named)

    model.training_step = training_step


class _Permuted:
    """Each batch in another order, that of this number: the rounding of sums changes, nothing else."""

    def __init__(self, model: LightningModule, permutation: int) -> None:
        self.model, self.permutation, self.batches = model, permutation, 0

    def __call__(self, step: Callable[..., Any], batch: Any, *rest: Any, **named: Any) -> Any:
        self.batches += 1
        generator = torch.Generator().manual_seed(seed_of(self.permutation, self.batches))
        order = torch.randperm(samples_in(batch) or 0, generator=generator)
        with counted(self.model, order):
            return step(taken(batch, order), *rest, **named)


def taken(batch: Any, order: Tensor) -> Any:
    """These samples of the batch, in this order."""
    n = samples_in(batch)
    return apply_to_collection(batch, Tensor, lambda leaf: leaf[order.to(leaf.device)] if leaf.shape[:1] == (n,) else leaf)


@contextmanager
def counted(model: nn.Module, order: Tensor) -> Iterator[None]:
    """Dropout that has been told a batch's samples drops those of these ones, in this order."""
    told = [(layer, layer.keys) for layer in model.modules() if isinstance(layer, Dropout) and layer.keys is not None]
    for layer, keys in told:
        layer.keys = keys[order.to(keys.device)]
    yield
    for layer, keys in told:
        layer.keys = keys


def _in_parts(
    model: nn.Module, size: int, accumulated: int, ranks: int, step: Callable[..., Any], batch: Any, *rest: Any, **named: Any
) -> Any:
    """The mean over what the step returns for each part: so processes, and accumulated batches of this size, average them."""
    chunks = torch.arange(samples_in(batch) or 0).split(size)
    parts = [part for chunk in chunks for part in (chunk[rank::ranks] for rank in range(ranks)) if len(part)]
    outputs = []
    for part in parts:
        with counted(model, part):
            outputs.append(step(_reweighted(taken(batch, part), accumulated * ranks), *rest, **named))
    losses = [_loss(output) for output in outputs]
    if not losses or any(loss is None for loss in losses):
        return outputs[-1] if outputs else None
    loss = torch.stack(losses).sum() / (accumulated * ranks)
    return outputs[-1] | {"loss": loss} if isinstance(outputs[-1], dict) else loss


def _reweighted(batch: Any, parts: int) -> Any:
    return batch._replace(loss_weight=batch.loss_weight * parts) if isinstance(batch, Batch) else batch


def _loss(output: Any) -> Any:
    return output.get("loss") if isinstance(output, dict) else output


def _still(model: LightningModule, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A step that leaves buffers as they have been."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    output = step(*arguments, **named)
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
    return output


def _weighted_by_tokens(step: Callable[..., Any], batch: Any, *rest: Any, **named: Any) -> Any:
    """The mean over a process's tokens, as its share of a mean over those of all processes."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, counted_tokens(batch))
    padded = {name for counts in everyone for name, (_, ignored) in counts.items() if ignored}
    total = sum(kept for counts in everyone for name, (kept, _) in counts.items() if name in padded)
    ours = sum(kept for name, (kept, _) in everyone[dist.get_rank()].items() if name in padded)
    output, share = step(batch, *rest, **named), len(everyone) * ours / max(1, total)
    return output | {"loss": output["loss"] * share} if isinstance(output, dict) else output * share


def counted_tokens(batch: Any) -> dict[str, tuple[int, int]]:
    """Of each tensor of integers, how many are targets, and how many are torch's ignore_index."""
    integers = [(name, leaf) for name, leaf in leaves(batch) if leaf.dtype == torch.int64]
    return {name: (int((leaf != IGNORED).sum()), int((leaf == IGNORED).sum())) for name, leaf in integers}


@torch.no_grad()
def round_anew(optimizer: torch.optim.Optimizer, number: int, step: int) -> None:
    """What the rounding of sums does to gradients, imitated: noise of some units of their largest value's last place."""
    generator = torch.Generator().manual_seed(seed_of(number, step))
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        gradient = parameter.grad
        if gradient is not None and gradient.layout == torch.strided and gradient.numel():
            size = ROUNDING_OF_A_SUM * torch.finfo(gradient.dtype).eps * gradient.abs().max()
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
