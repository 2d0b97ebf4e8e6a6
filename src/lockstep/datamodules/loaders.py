"""Loaders of batches for the device, from the batches of ids that a sampler draws."""

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from lockstep.datamodules.batches import Batch, Batches, is_copied_alone
from lockstep.datamodules.samplers import BatchIndices
from lockstep.launchers.stop_signals import STOP_SIGNALS


def make_loader(dataset: Batches, sampler: DistributedSampler[BatchIndices], **loading: Any) -> DataLoader[Batch]:
    """Return a loader with batch_size=None: the sampler yields whole batches, which the dataset fetches at once."""
    return _Loader(dataset, None, sampler=sampler, collate_fn=unchanged, worker_init_fn=ignore_sigterm, **loading)


class _Loader(DataLoader[Batch]):
    """A loader that is a plain loop if it has no workers: torch's does for a batch what it does for a sample. Copies page-locked
    batches, which are for a GPU, there ahead of time."""

    def __iter__(self) -> Any:
        if self.num_workers:
            return copy_ahead(super().__iter__()) if self.pin_memory else super().__iter__()
        batches = (self.dataset[indices] for indices in self.sampler)
        if not self.pin_memory:
            return batches
        return copy_ahead(Batch(*map(_locked, batch[:3]), loss_weight=batch.loss_weight) for batch in batches)


def _locked(tensor: Tensor) -> Tensor:
    if not is_copied_alone(tensor, len(tensor)):
        return tensor.pin_memory()
    result = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    result.numpy()[...] = tensor.numpy()
    return result


def copy_ahead(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield page-locked batches on the current CUDA device: while a step runs on one, the next is copied, on its own stream."""
    copying, ahead = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(copying):
            copy = batch.to(copying.device), copying.record_event()
        if ahead is not None:
            yield _arrived(*ahead)
        ahead = copy
    if ahead is not None:
        yield _arrived(*ahead)


def _arrived(batch: Batch, copied: Any) -> Batch:
    stepping = torch.cuda.current_stream()
    stepping.wait_event(copied)
    for tensor in batch[:3]:
        tensor.record_stream(stepping)  # later copies may not use its memory before the step is over
    return batch


def unchanged(batch: Any) -> Any:
    return batch


def ignore_sigterm(_: int) -> None:
    """Ignore SIGTERM in a data worker. A request to stop that reaches the whole process group is for the run, which needs its
    workers until the next step boundary, and ends them; torch's own handler would end them at once, and fail the run."""
    if STOP_SIGNALS.process:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
