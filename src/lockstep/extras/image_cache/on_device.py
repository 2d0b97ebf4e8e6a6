"""Data that fits on the device lives there: no batch is copied, none waits for a worker."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lockstep.config.targets import buildable
from lockstep.datamodules.batches import Augment, Batch, Batches, InMemory
from lockstep.datamodules.loaders import ignore_sigterm, unchanged
from lockstep.datamodules.options import DataOption
from lockstep.datamodules.samplers import BatchIndices
from lockstep.errors import config_error

CHUNK = 256  # samples that are brought there at a time


@buildable
class OnDevice(DataOption):
    """Brings every split to the device once; the workers of the DataModule read what is not in memory."""

    def load(self, batches: Batches, device: torch.device, loading: dict[str, Any]) -> tuple[Batches, dict[str, Any]]:
        return BatchesOnDevice(batches.dataset, device, batches.augment, loading["num_workers"]), {}


class BatchesOnDevice(Batches):
    """Any dataset of (input, target) pairs, brought to the device whole: batches are gathered there, and augmented there by
    the draws of other loaders, which are whole numbers and the same on every device. `workers` read what is not in memory.

    Raises ConfigError where the device is too small.
    """

    def __init__(self, dataset: Any, device: torch.device, augment: Augment | None = None, workers: int = 0) -> None:
        self.device = device
        try:
            super().__init__(InMemory(*_brought(dataset, device, workers)), augment)
        except torch.OutOfMemoryError as error:
            accepted = f"{len(dataset)} samples do not fit on {device}; accepted is null"
            raise config_error("datamodule.loading", "on_device", accepted) from error

    def __getitem__(self, indices: BatchIndices) -> Batch:
        return super().__getitem__(indices._replace(ids=indices.ids.to(self.device, non_blocking=True)))


def _brought(dataset: Any, device: torch.device, workers: int) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, InMemory):
        return dataset.inputs.to(device), dataset.targets.to(device)
    chunks: Any = [BatchIndices(ids, 0, 1.0) for ids in torch.arange(len(dataset)).split(CHUNK)]
    options: dict[str, Any] = {"collate_fn": unchanged, "worker_init_fn": ignore_sigterm}
    loader = DataLoader(Batches(dataset), None, sampler=chunks, num_workers=workers, **options)
    none = Batches(dataset)[BatchIndices(torch.empty(0, dtype=torch.int64), 0, 1.0)]  # their shapes and types
    inputs, targets = (part.new_empty((len(dataset), *part.shape[1:]), device=device) for part in none[:2])
    for batch in loader:
        inputs[batch.ids], targets[batch.ids] = batch.inputs.to(device), batch.targets.to(device)
    return inputs, targets
