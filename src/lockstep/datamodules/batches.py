"""Batches of tensors, fetched at once; the tensors in a batch of any structure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from lockstep.datamodules.seeded import Draws, Seeded

Augment = Callable[[Tensor, Tensor, int], Tensor]


def rows(dataset: TensorDataset, ids: Tensor) -> tuple[Tensor, ...]:
    """Return the samples with these ids, as one tensor for each of the dataset's."""
    return tuple(_rows(data, ids) for data in dataset.tensors)


def _rows(data: Tensor, ids: Tensor) -> Tensor:
    """Return `data[ids]`, copied by numpy in this thread where it can, without a copy of all data: torch copies with several,
    and waits for the one whose core another process uses."""
    if data.is_cpu and data.is_contiguous() and data.dtype is not torch.bfloat16:
        return torch.from_numpy(data.numpy().take(ids.numpy(), axis=0))
    return data.index_select(0, ids)


class Batches(Seeded):
    """Batches (inputs, targets) of any dataset of such pairs, for a loader with batch_size=None: indexed by a list of samples.

    Rows of a TensorDataset's tensors are fetched at once and unseeded, also for a subclass that leaves `__getitem__` as it is.

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
        is_plain = isinstance(self.dataset, TensorDataset) and type(self.dataset).__getitem__ is TensorDataset.__getitem__
        samples = rows(self.dataset, ids) if is_plain else self._load(draws)
        inputs, targets = samples if isinstance(samples, tuple) else default_collate(samples)
        return (inputs if self.augment is None else self.augment(inputs, ids, draws.epoch)), targets


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
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch  # as most are: this is called twice a step
    if isinstance(first, Tensor) and first.ndim:
        return len(first)
    return next((len(tensor) for _, tensor in leaves(batch) if tensor.ndim), None)
