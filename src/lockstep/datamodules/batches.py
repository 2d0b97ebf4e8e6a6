"""Batches of tensors made from sample ids."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from lockstep.datamodules.samplers import BatchIndices
from lockstep.datamodules.seeded import Draw, Seeded
from lockstep.errors import ConfigError

Augment = Callable[[Tensor, Tensor, int], Tensor]
# Bytes up to which one thread is faster than several: torch copies more than 32,768 numbers with all of its threads
# (GRAIN_SIZE, ATen/TensorIterator.h), and a step waits for the one whose core another process is using.
_SMALL = 1 << 20
_NUMPY_TYPES = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}


class Batch(NamedTuple):
    """The batch that a model's step receives.

    Attributes:
        inputs: (n, *input_shape), uint8 for images or float; n = 0 on a rank without a sample in a tail.
        targets: (n,) class numbers, or (n, outputs) floats.
        ids: (n,) sample numbers in the split, on the device too.
        loss_weight: of each sample in the step's gradient; see lockstep.datamodules.samplers.BatchIndices.
    """

    inputs: Tensor
    targets: Tensor
    ids: Tensor
    loss_weight: float

    def to(self, device: torch.device) -> "Batch":
        """Move the batch; Lightning calls this instead of recursing."""
        if self.inputs.device == device:
            return self
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self[:3]), loss_weight=self.loss_weight)


class InMemory(Dataset[tuple[Tensor, Tensor]]):
    """Data that fits: inputs (length, *input_shape) and targets (length, ...), fetched a whole batch at a time."""

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
    """Return `data[index]`, copied a sample at a time, not an element. This thread alone copies a small batch."""
    if is_copied_alone(data, index.shape[0]):
        return torch.from_numpy(data.numpy().take(index.numpy(), axis=0))
    return data.index_select(0, index)


def is_copied_alone(data: Tensor, rows: int) -> bool:
    """True if this thread alone copies so many rows, by numpy, which would first copy all of data that is not contiguous."""
    can_be_taken = data.device.type == "cpu" and data.dtype in _NUMPY_TYPES and data.is_contiguous() and not data.requires_grad
    return can_be_taken and rows * data.stride(0) * data.itemsize <= _SMALL


class Batches(Dataset[Batch]):
    """Any dataset of (input, target) pairs, indexed by a BatchIndices.

    Uses `__getitems__` where the dataset has it (a tuple of tensors, or a list of samples), and collates single samples
    otherwise; see lockstep.datamodules.seeded.
    """

    def __init__(self, dataset: Any, augment: Augment | None = None, seed: int = 0) -> None:
        self.dataset, self.augment, self.seeded = dataset, augment, Seeded(dataset, seed)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: BatchIndices) -> Batch:
        inputs, targets = self._fetch(indices.ids, indices.epoch)
        if self.augment is not None and len(indices.ids):
            inputs = self.augment(inputs, indices.ids, indices.epoch)
        return Batch(inputs, targets, indices.ids, indices.loss_weight)

    def _fetch(self, ids: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        if isinstance(self.dataset, InMemory):
            return self.dataset.__getitems__(ids)
        wanted = ids.tolist() or [0]  # an empty batch is a batch of one, cut to none: its shape and type are right
        samples = self.seeded.__getitems__([Draw(number, epoch, number) for number in wanted])
        inputs, targets = _pair(samples if isinstance(samples, tuple) else default_collate(samples))
        return inputs[: len(ids)], targets[: len(ids)]


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and targets. Raises ConfigError for samples that are not pairs of tensors or numbers."""
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    kinds = ", ".join(type(part).__name__ for part in batch) if isinstance(batch, tuple | list) else type(batch).__name__
    accepted = (
        "accepted by a DataModule are pairs (input, target) of tensors; a LightningDataModule with a LightningModule takes any"
    )
    raise ConfigError(f"datamodule: its samples make a batch of {kinds}; {accepted}")
