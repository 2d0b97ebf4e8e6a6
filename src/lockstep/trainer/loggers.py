"""Loggers that continue at the checkpoint of a resumed run."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import rank_zero_experiment
from omegaconf import DictConfig
from torch import Tensor, nn

from lockstep.config.construct import arguments_of, construct, resolve
from lockstep.runs.results import OPTIMIZED
from lockstep.trainer.lightning_internals import read_logged_step


def build_loggers(entries: Mapping[str, dict[str, Any]], cfg: DictConfig, checkpoint: Path | None) -> list[Any]:
    """Return the loggers of a config's entries. In a run resumed from a checkpoint, those with an argument `purge_step` remove
    what they have logged after it."""
    purge: dict[str, Any] = {}
    if checkpoint is not None:
        from lockstep.runs.resume import read_start  # only resumed runs need it

        purge["purge_step"] = read_logged_step(read_start(cfg, "resume", checkpoint))
    takes = {key: arguments_of(resolve(key, entry.get("_target_"))).types for key, entry in entries.items()}
    return [construct(key, entry, purge if "purge_step" in takes[key] else {}) for key, entry in entries.items()]


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Lightning's TensorBoardLogger, with the optimized metric in front.

    Args:
        optimized_metric: is logged as Optimized/NAME, too: TensorBoard's first curve, and first metric beside hyperparameters.
        purge_step: TensorBoard ignores what was logged from this step on.
    """

    def __init__(
        self, *positional: Any, optimized_metric: str | None = None, purge_step: int | None = None, **settings: Any
    ) -> None:
        super().__init__(*positional, purge_step=purge_step, **settings)
        self.optimized_metric = optimized_metric

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        optimized = {OPTIMIZED + name: value for name, value in metrics.items() if name == self.optimized_metric}
        super().log_metrics({**metrics, **optimized}, step)

    def log_hyperparams(self, params: Any, *arguments: Any, **options: Any) -> None:
        super().log_hyperparams(_without_tensors(params), *arguments, **options)


class CSVLogger(loggers.CSVLogger):
    """Lightning's, which deletes the file that it finds. This one keeps what was logged before `purge_step`, the first step
    that is to be logged anew; TensorBoard's writer has an argument of that name and meaning."""

    def __init__(self, *, purge_step: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._kept = [] if purge_step is None else self._rows_before(purge_step)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        writer: Any = super().experiment
        if self._kept:
            writer.metrics.extend(self._kept)
            writer.save()  # at once: Lightning has deleted the file
            self._kept = []
        return writer

    def log_hyperparams(self, params: Any = None) -> None:
        super().log_hyperparams(_without_tensors(params))

    def _rows_before(self, step: int) -> list[dict[str, Any]]:
        path = Path(self.log_dir) / "metrics.csv"
        if not path.is_file():
            return []
        with path.open(newline="") as file:
            rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
        whole = [row for row in rows if row.get("step", "").isdigit()]  # the last one may have been cut off
        return [row | {"step": int(row["step"])} for row in whole if int(row["step"]) < step]


def _without_tensors(params: Any) -> Any:
    """Name the class of a network, a tensor or an array: Lightning would write each of its numbers to hparams.yaml, a million in
    a minute."""
    if not isinstance(params, Mapping):
        return params
    kinds = (nn.Module, Tensor, np.ndarray)
    return {name: type(value).__name__ if isinstance(value, kinds) else value for name, value in params.items()}
