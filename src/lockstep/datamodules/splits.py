"""Training, validation and test splits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from lockstep.datamodules.batches import InMemory
from lockstep.datamodules.samplers import shuffled
from lockstep.errors import config_error


@dataclass(frozen=True)
class Splits:
    """Three datasets of (input, target) pairs; a missing validation or test split is None."""

    train: Any
    val: Any | None
    test: Any | None


def seeded_split(length: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split the ids of `length` samples into (the rest, a random `fraction`), each in ascending order."""
    held_out = round(length * fraction)
    order = shuffled(length, seed)
    return order[held_out:].sort().values, order[:held_out].sort().values


def draw_fold(length: int, folds: int, fold: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split the ids of `length` samples into (the rest, part `fold` of `folds` equal parts), each in ascending order."""
    if folds > length:
        raise config_error("datamodule.folds", folds, f"there are {length} samples; use at most as many")
    parts = shuffled(length, seed).tensor_split(folds)
    rest = torch.cat([part for number, part in enumerate(parts) if number != fold])
    return rest.sort().values, parts[fold].sort().values


def subset(dataset: Any, ids: Tensor) -> InMemory | Subset[Any]:
    """Return the samples with these ids; data in memory is copied, so that a batch comes from one tensor."""
    is_in_memory = type(dataset) is InMemory  # a subclass may be on disk
    return InMemory(*dataset.__getitems__(ids)) if is_in_memory else Subset(dataset, ids.tolist())
