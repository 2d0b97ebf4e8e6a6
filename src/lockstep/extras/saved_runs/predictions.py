"""The predictions of a module's predict_step, one for each sample of predict_dataloader, on any number of processes."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import CombinedLoader
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import IterableDataset

from lockstep.atomic_files import replacing
from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.datamodules.batches import Batch, Batches
from lockstep.errors import config_error


def predict(cfg: DictConfig, plan: Plan, output: Path) -> Trainer:
    """Write `output`, for torch.load: the "indices" of samples in their dataset, and "predictions", an entry for each.

    Called on every rank. The file has a list of such dictionaries if there are several loaders.
    """
    datamodule, model, trainer = build(cfg, plan)
    trainer.callbacks.append(_Writer(output))  # pyright: ignore[reportAttributeAccessIssue]
    warnings.filterwarnings("ignore", "Couldn't infer the batch indices")  # a Batch has them, a stream has none
    trainer.predict(model, datamodule, return_predictions=False)
    return trainer


class _Writer(BasePredictionWriter):
    """Write each rank's own part, and join them on rank zero: they may be too large to be sent."""

    def __init__(self, output: Path) -> None:
        super().__init__("epoch")
        self.output = output
        self._ids: dict[int, Any] = {}  # by loader, the ids of each batch that has them

    def on_predict_start(self, trainer: Any, pl_module: LightningModule) -> None:
        datasets = [getattr(one, "dataset", None) for one in CombinedLoader(trainer.predict_dataloaders, "sequential").flattened]
        if trainer.world_size > 1 and any(isinstance(one, IterableDataset) and not isinstance(one, Batches) for one in datasets):
            words = "predict_dataloader is a stream, which each process would predict whole; use 1"
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
        own = [joined(self._ids.get(i, batch_indices[i]), batches) for i, batches in enumerate(loaders)]
        parts = [self.output.with_name(f"{self.output.name}.rank{rank}") for rank in range(trainer.world_size)]
        torch.save(own, parts[trainer.global_rank])
        trainer.strategy.barrier("predictions are written")
        if trainer.is_global_zero:
            whole = [in_order(loader) for loader in zip(*(torch.load(part, weights_only=True) for part in parts), strict=True)]
            with replacing(self.output, mode="wb") as file:
                torch.save(whole if len(whole) > 1 else whole[0], file)
            for part in parts:
                part.unlink()


def joined(indices: Sequence[Sequence[int]], batches: Sequence[Any]) -> dict[str, Any] | None:
    """Join the predictions of a process for one loader; None for nothing. The samples of a stream are counted."""
    if not batches:
        return None
    whole, flat = _apply(_concatenate, batches), [index for batch in indices for index in batch]
    sizes = list[int]()
    _apply(lambda leaf: sizes.append(len(leaf[0])), [whole])
    if {*sizes} != {len(flat or range(sizes[0]))}:
        words = f"it has returned {sizes} entries for {len(flat)} samples; return an entry for each"
        raise config_error("predict_step", type(batches[0]).__name__, words)
    return {"indices": torch.tensor(flat or range(sizes[0]), dtype=torch.long), "predictions": whole}


def in_order(ranks: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Join the parts of all processes in the order of the dataset."""
    parts = [part for part in ranks if part is not None]
    indices, order = torch.cat([part["indices"] for part in parts]).sort(stable=True)
    whole = _apply(_concatenate, [part["predictions"] for part in parts])
    return {"indices": indices, "predictions": _apply(lambda leaf: _take(leaf[0], order), [whole])}


def _apply(function: Callable[[Sequence[Any]], Any], trees: Sequence[Any]) -> Any:
    """Apply a function to the leaves in the same place of several trees of dictionaries and tuples."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: _apply(function, [tree[name] for tree in trees]) for name in first}
    if isinstance(first, tuple):
        return tuple(_apply(function, leaves) for leaves in zip(*trees, strict=True))
    return function(trees)


def _concatenate(parts: Sequence[Any]) -> Any:
    return torch.cat([part.cpu() for part in parts]) if isinstance(parts[0], Tensor) else [one for part in parts for one in part]


def _take(whole: Any, order: Tensor) -> Any:
    return whole[order] if isinstance(whole, Tensor) else [whole[i] for i in order.tolist()]
