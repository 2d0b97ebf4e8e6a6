"""What is done to a training, in its ranks, beyond its config."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lockstep.counter_rng import seed_of
from lockstep.parity.sides import frozen


def freeze(model: nn.Module, interventions: Set[str]) -> None:
    """Parameters that are to be left as they are drawn."""
    for name, parameter in model.named_parameters():
        if frozen(name) in interventions:
            parameter.requires_grad_(False)


def permute(datamodule: Any, permutation: int) -> None:
    """Each training batch in another order, that of this number: the rounding of sums changes, nothing else."""
    given = datamodule.train_dataloader

    def train_dataloader() -> Any:
        loaders = given()
        for loader in tree_leaves(loaders):
            loader.collate_fn = _PermutedCollate(loader.collate_fn, permutation)
        return loaders

    datamodule.train_dataloader = train_dataloader


class _PermutedCollate:
    def __init__(self, collate: Callable[[Any], Any], permutation: int) -> None:
        self.collate, self.permutation, self.batches = collate, permutation, 0

    def __call__(self, samples: Any) -> Any:
        batch = self.collate(samples)
        self.batches += 1
        length = next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), None)
        if length is None:
            raise TypeError(f"a batch of type {type(batch).__name__} can't be permuted: torch.utils._pytree sees no tensors")
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed_of(self.permutation, self.batches)))
        return tree_map(lambda leaf: leaf[order] if isinstance(leaf, Tensor) and leaf.shape[:1] == (length,) else leaf, batch)


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
