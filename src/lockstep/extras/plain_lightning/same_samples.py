"""Samples of a dataset, compared by a fingerprint of a few of them."""

import io
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from lightning import Callback, LightningDataModule, LightningModule
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from numpy import ndarray
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.utils.data import IterableDataset

from lockstep.callbacks.stepped_rate import is_own_checkpoint
from lockstep.console import join_first
from lockstep.datamodules.seeded import Restored, Seeded
from lockstep.errors import config_error
from lockstep.extras.plain_lightning.processes import all_ranks

_MANY = 1000  # entries of a container that is not copied
_OF_LOADERS = ("batch_size", "global_batch_size", "num_workers")  # keys that leave samples as they are


class SameSamples(Callback):
    """Raise ConfigError for a resumed run whose config is the same and whose training samples are not: those made from the order
    of a set, say, which depends on Python's hash seed."""

    def __init__(self, cfg: DictConfig) -> None:
        settings: Any = OmegaConf.to_container(cfg.datamodule or cfg.model, resolve=True)
        self._config = repr({key: value for key, value in settings.items() if key not in _OF_LOADERS})
        self._samples: list[Any] = []
        self._before: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        self._samples = [fingerprint(getattr(loader, "dataset", None)) for loader in loaders]
        has_state = trainer.datamodule is not None and is_overridden("load_state_dict", trainer.datamodule, LightningDataModule)
        is_comparable = trainer.is_global_zero and is_own_checkpoint(trainer) and self._before.get("config") == self._config
        if not is_comparable or has_state or trainer.reload_dataloaders_every_n_epochs:
            return
        before = self._before["samples"]
        known = [pair for pair in zip(before, self._samples, strict=False) if None not in pair]
        if any(one != other for one, other in known):
            why = "train_dataloader has other samples than this run was trained on (the order of a set depends on PYTHONHASHSEED)"
            raise config_error("checkpoint", trainer.ckpt_path, f"{why}; make them the same, or use fork=RUN_DIR for other data")

    def state_dict(self) -> dict[str, Any]:
        return {"config": self._config, "samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict


def check_processes(name: str, shared: list[tuple[Any, Any]]) -> None:
    """Raise ConfigError if processes have other data from which each would take its share, or draw it in another order; a
    collective. `name` is the hook that made the loaders, `shared` are their datasets and what shares each out."""
    own = [(sized_len(data), sampler.length, fingerprint(data), sampler.first_drawn()) for data, sampler in shared]
    ranks = all_ranks(own)
    for each in zip(*ranks, strict=False):
        sizes, lengths, samples, orders = zip(*each, strict=True)
        if len({*sizes}) > 1 or len({*lengths}) > 1:
            differ = f"{name} has {join_first(lengths)} samples in the processes"
        elif (None not in samples and any(one != samples[0] for one in samples)) or len({*orders}) > 1:
            differ = f"{name} has other samples in each process, or draws them in another order"
        else:
            continue
        needs = "make the same whole in each, or use +trainer.use_distributed_sampler=false for data that is divided already"
        raise config_error("trainer.devices", len(ranks), f"{differ}; {needs}")


def fingerprint(dataset: Any) -> list[int] | None:
    """Return the length and checksums of the first three samples and the last; None if they are not known, for a stream or a
    sample that is another each time.

    A copy of the dataset is read: one that opens its file when it is first read does so in each data worker.
    """
    dataset = dataset.dataset if isinstance(dataset, Seeded) else dataset
    with suppress(Exception), Restored():  # whoever needs the samples says what is wrong with them
        if not isinstance(dataset, IterableDataset) and (length := len(dataset)):
            samples = Seeded(_copied(dataset), 0)
            first, *others = (checksum(samples[place]) for place in (0, 0, *range(1, min(3, length)), length - 1))
            return [length, *others] if first == others[0] else None
    return None


def checksum(value: Any) -> int:
    """Return a checksum of a value's tensors, arrays, pictures, numbers and strings, in containers of any depth."""
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
    elif hasattr(sample, "tobytes"):  # numpy's, and pictures
        yield sample.tobytes()
    elif isinstance(sample, str | bytes | int | float | None):
        yield repr(sample).encode()
    elif hasattr(sample, "__dict__"):
        yield from _bytes(vars(sample))


class _Pickler(pickle.Pickler):
    """Pickle references to whatever is large."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.large: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor | ndarray) and not (isinstance(obj, list | tuple | dict) and len(obj) > _MANY):
            return None
        self.large.append(obj)
        return len(self.large) - 1


def _copied(dataset: Any) -> Any:
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(dataset)
    unpickler = pickle.Unpickler(io.BytesIO(file.getvalue()))
    unpickler.persistent_load = pickler.large.__getitem__  # pyright: ignore[reportAttributeAccessIssue]
    return unpickler.load()
