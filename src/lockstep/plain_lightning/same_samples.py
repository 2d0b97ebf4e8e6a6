"""Compare datasets by fingerprints of a few samples."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from typing import Any

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from lockstep.callbacks.every_run import is_own_checkpoint
from lockstep.datamodules.seeded import Restored, Seeded
from lockstep.errors import config_error
from lockstep.plain_lightning.processes import all_ranks


class SameSamples(Callback):
    """Raise ConfigError if a resumed run has the same config but other training samples, for example samples made from the order
    of a set, which depends on Python's hash seed."""

    def __init__(self, cfg: DictConfig) -> None:
        self._config = OmegaConf.to_yaml(cfg.datamodule or cfg.model, resolve=True)
        self._samples: list[Any] = []
        self._before: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        self._samples = [fingerprint(getattr(loader, "dataset", None)) for loader in loaders]
        is_same_run = is_own_checkpoint(trainer) and self._before.get("config") == self._config
        if not trainer.is_global_zero or not is_same_run or trainer.reload_dataloaders_every_n_epochs:
            return
        if self._before["samples"] not in ([], self._samples):  # empty in those of Lightning's finders
            why = "train_dataloader has other samples than this run was trained on (the order of a set depends on PYTHONHASHSEED)"
            raise config_error("checkpoint", trainer.ckpt_path, f"{why}; make them the same, or use fork=RUN_DIR for other data")

    def state_dict(self) -> dict[str, Any]:
        return {"config": self._config, "samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict


def check_processes(name: str, shared: list[tuple[Any, Any]]) -> None:
    """Raise ConfigError if processes have different data, or draw it in different orders; a collective. `name` is the hook that
    made the loaders, `shared` has their datasets and the sampler that divides each."""
    ranks = all_ranks([(sampler.length, fingerprint(data), sampler.first_drawn()) for data, sampler in shared])
    if any(rank != ranks[0] for rank in ranks):
        differ = f"{name} has other samples in each process, or draws them in another order"
        needs = "make the same whole in each, or use +trainer.use_distributed_sampler=false for data that is divided already"
        raise config_error("trainer.devices", len(ranks), f"{differ}; {needs}")


def fingerprint(dataset: Any) -> list[int] | None:
    """Return the length and checksums of the first three samples and the last; None if they are unknown, for a stream or samples
    that differ each time.

    A copy of the dataset is read, so that a dataset that opens its file at the first read still does so in each data worker.
    """
    dataset = dataset.dataset if isinstance(dataset, Seeded) else dataset
    with suppress(Exception), Restored():  # errors are raised where the samples are used
        if not isinstance(dataset, IterableDataset) and (length := len(dataset)):
            samples = Seeded(_copied(dataset), 0)
            first, *others = (checksum(samples[place]) for place in (0, 0, *range(1, min(3, length)), length - 1))
            return [length, *others] if first == others[0] else None
    return None


def checksum(value: Any) -> int:
    """Return a checksum of a value's tensors, arrays, images, numbers and strings, in nested containers."""
    total = 0
    for part in _bytes(value):
        total = zlib.crc32(part, total)
    return total


def _bytes(sample: Any) -> Iterator[bytes]:
    if isinstance(sample, Tensor):
        sample = sample.detach().cpu().to_dense().contiguous().flatten().view(torch.uint8).numpy()  # NumPy has no bfloat16
    if isinstance(sample, Mapping):
        sample = list(sample.items())
    if isinstance(sample, list | tuple):
        for part in sample:
            yield from _bytes(part)
    elif hasattr(sample, "tobytes"):  # numpy's, and images
        yield sample.tobytes()
    elif isinstance(sample, str | bytes | int | float | None):
        yield repr(sample).encode()
    elif hasattr(sample, "__dict__"):
        yield from _bytes(vars(sample))


def _copied(dataset: Any) -> Any:
    """Return a copy of a dataset, and of nested datasets, that shares their data."""
    copied = copy(dataset)
    for name, value in vars(copied).items():
        if isinstance(value, Dataset):
            setattr(copied, name, _copied(value))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Dataset):
            setattr(copied, name, [_copied(one) for one in value])
    return copied
