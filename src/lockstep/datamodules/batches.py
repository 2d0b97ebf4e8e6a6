"""Batches of tensors, fetched at once; the tensors in a batch of any structure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from lockstep.datamodules.seeded import Draws, Seeded

Augment = Callable[[Tensor, Tensor, int], Tensor]


class InMemory(Dataset[tuple[Tensor, Tensor]]):
    """Data in memory: inputs (length, *input_shape) and targets (length, ...), fetched a whole batch at a time."""

    def __init__(self, inputs: Tensor | ndarray, targets: Tensor | ndarray) -> None:
        self.inputs, self.targets = torch.as_tensor(inputs), torch.as_tensor(targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        index = ids if isinstance(ids, Tensor) else torch.as_tensor(ids)
        return _rows(self.inputs, index), _rows(self.targets, index)


def _rows(data: Tensor, index: Tensor) -> Tensor:
    """Return `data[index]`, copied by numpy in this thread where it can, without a copy of all data: torch copies with several,
    and waits for the one whose core another process uses."""
    if data.is_cpu and data.is_contiguous() and data.dtype is not torch.bfloat16:
        return torch.from_numpy(data.numpy().take(index.numpy(), axis=0))
    return data.index_select(0, index)


class Batches(Seeded):
    """Batches (inputs, targets) of any dataset of such pairs, for a loader with batch_size=None: indexed by a list of samples.

    If a dataset has `__getitems__`, which returns a tuple of tensors or a list of samples, it loads a batch at once.

    Args:
        augment: called with the inputs (n, ...), the sample indices (n,), and the epoch.
    """

    def __init__(self, dataset: Any, seed: int = 0, augment: Augment | None = None) -> None:
        super().__init__(dataset, seed)
        vars(self).update(augment=augment)

    def __reduce__(self) -> Any:
        return Batches, (self.dataset, self.seed, self.augment)

    def __getitem__(self, drawn: Sequence[Any]) -> tuple[Tensor, Tensor]:
        draws = drawn if isinstance(drawn, Draws) else Draws(drawn)
        ids = torch.tensor([*draws])  # a plain list, since Draws is a subclass, is read in C
        if isinstance(self.dataset, InMemory):
            inputs, targets = self.dataset.__getitems__(ids)
        else:
            samples = self.load(draws)
            inputs, targets = samples if isinstance(samples, tuple) else default_collate(samples)
        if self.augment is not None:
            inputs = self.augment(inputs, ids, draws.epoch)
        return inputs, targets


def leaves(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a batch with its path, in nested tuples, dictionaries or dataclasses."""
    if isinstance(batch, Tensor):
        yield name, batch
        return
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = {field.name: getattr(batch, field.name) for field in fields(batch)}
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        batch = dict(enumerate(batch))
    for key, part in batch.items() if isinstance(batch, Mapping) else ():
        yield from leaves(part, f"{name}.{key}")


def samples_in(batch: Any) -> int | None:
    """Return the number of samples of a batch: the length of its first tensor that has dimensions, or None without one."""
    return next((len(tensor) for _, tensor in leaves(batch) if tensor.ndim), None)
