"""What a module's predict_step says of the samples of its predict_dataloader, each once, on any number of processes."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import IterableDataset, SequentialSampler

from lockstep.atomic_files import replacing
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import Batch, Batches
from lockstep.errors import config_error


def predict(cfg: DictConfig, plan: Plan, output: Path) -> Trainer:
    """Writes `output`, for torch.load: the "indices" of the samples in their dataset, and "predictions", an entry for each, in
    the order of the dataset; a list of such where there are several loaders. Called on every rank.

    Raises ConfigError for code that has no loader to predict, for a stream on several processes, and for predictions that have
    not one entry for each sample of a batch.
    """
    datamodule, model, trainer = build(cfg, plan)
    source = datamodule or model
    if not (isinstance(source, LightningModule | LightningDataModule) and is_overridden("predict_dataloader", source)):
        words = f"{type(source).__name__} has no predict_dataloader; accepted is a run whose data has one, or images as INPUT"
        raise config_error("RUN_DIR", Path(cfg.init_from).parents[1], words)
    trainer.callbacks.append(_Writer(output))  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(datamodule, DataModule):
        warnings.filterwarnings("ignore", "Couldn't infer the batch indices")  # its batches say them
    trainer.predict(model, datamodule, return_predictions=False)
    if not output.is_file() and trainer.is_global_zero:
        raise config_error(
            "RUN_DIR", Path(cfg.init_from).parents[1], "predict_dataloader has no samples; accepted is data with some"
        )
    return trainer


class _Writer(BasePredictionWriter):
    """Each rank writes its own part, which rank zero joins: they may be too large to be sent."""

    def __init__(self, output: Path) -> None:
        super().__init__("epoch")
        self.output = output
        self._ids: dict[int, Any] = {}  # by loader, of each batch that says so itself

    def on_predict_start(self, trainer: Any, pl_module: LightningModule) -> None:
        several = CombinedLoader(trainer.predict_dataloaders, "sequential").flattened  # of a list, a dict, or one
        self._is_alone = [_yields_samples(one) for one in several]
        share = (trainer.global_rank, trainer.world_size)
        if trainer.world_size > 1 and not all(_has_indices(one) or _share(one) == share for one in several):
            words = "predict_dataloader is a stream, which each process would predict whole; accepted is 1, or a Shard of it"
            raise config_error("trainer.devices", trainer.world_size, words)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if isinstance(batch, Batch):
            self._ids.setdefault(dataloader_idx, []).append(batch.ids.tolist())

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        loaders = predictions if len(batch_indices) > 1 else [predictions]
        loaders = [[[one] for one in each] if alone else each for alone, each in zip(self._is_alone, loaders, strict=True)]
        indices = [self._ids.get(i, batches) for i, batches in enumerate(batch_indices)]
        own = [_joined(*pair, trainer.global_rank, trainer.world_size) for pair in zip(indices, loaders, strict=True)]
        parts = [self.output.with_name(f"{self.output.name}.rank{rank}") for rank in range(trainer.world_size)]
        torch.save(own, parts[trainer.global_rank])
        trainer.strategy.barrier("predictions are written")
        if trainer.is_global_zero:
            ranks = [torch.load(part, weights_only=True) for part in parts]
            whole = [_sorted([rank[loader] for rank in ranks]) for loader in range(len(own))]
            with replacing(self.output, mode="wb") as file:
                torch.save(whole if len(whole) > 1 else whole[0], file)
            for part in parts:
                part.unlink()


def _has_indices(loader: Any) -> bool:
    if isinstance(getattr(loader, "dataset", None), Batches):
        return True
    return getattr(loader, "batch_sampler", None) is not None and not isinstance(loader.dataset, IterableDataset)


def _yields_samples(loader: Any) -> bool:
    """Returns whether it yields one sample after the other, and no batches: a DataLoader with batch_size=None."""
    return not _has_indices(loader) and isinstance(getattr(loader, "sampler", None), SequentialSampler)


def _share(loader: Any) -> Any:
    """(number, of how many) processes, for a stream of which each takes every so many-th sample, as a Shard's does."""
    return getattr(getattr(loader, "dataset", None), "share", None)


def _joined(indices: list[list[int]], batches: Sequence[Any], rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Of one loader. A stream has no indices; its samples are counted, every so many-th from the rank's on."""
    for numbers, batch in zip(indices, batches, strict=False):
        _check_entries(batch, len(numbers) or None)
    whole = _concatenated(batches)
    flat = [index for batch in indices for index in batch]
    counted = range(rank, rank + ranks * _count(whole), ranks)
    return {"indices": torch.tensor(flat or counted, dtype=torch.long), "predictions": whole}


def _sorted(parts: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [part for part in parts if len(part["indices"])]
    indices, order = torch.cat([part["indices"] for part in parts]).sort(stable=True)
    return {"indices": indices, "predictions": _taken(_concatenated([part["predictions"] for part in parts]), order)}


def _check_entries(batch: Any, samples: int | None) -> None:
    if isinstance(batch, dict | tuple):
        for one in batch.values() if isinstance(batch, dict) else batch:
            _check_entries(one, samples)
        return
    size = len(batch) if isinstance(batch, list) or (isinstance(batch, Tensor) and batch.ndim) else None
    if size is None or size != (samples or size):
        shown = f"a tensor of shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
        accepted = "accepted is a tensor or list with an entry for each sample, or a dict or tuple of these"
        raise config_error("predict_step", shown, f"for a batch of {samples or 'some'} samples; {accepted}")


def _concatenated(parts: Sequence[Any]) -> Any:
    first = parts[0] if parts else []
    if isinstance(first, dict):
        return {name: _concatenated([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(_concatenated(column) for column in zip(*parts, strict=True))
    return torch.cat([part.cpu() for part in parts]) if isinstance(first, Tensor) else [entry for part in parts for entry in part]


def _taken(whole: Any, order: Tensor) -> Any:
    if isinstance(whole, dict):
        return {name: _taken(one, order) for name, one in whole.items()}
    if isinstance(whole, tuple):
        return tuple(_taken(one, order) for one in whole)
    return whole[order] if isinstance(whole, Tensor) else [whole[i] for i in order.tolist()]


def _count(whole: Any) -> int:
    while isinstance(whole, dict | tuple):
        whole = next(iter(whole.values() if isinstance(whole, dict) else whole))
    return len(whole)
