"""Hugging Face data sets on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.datamodules.image_folder import WORKERS, decode
from lockstep.errors import check_at_least

_NAMES = {"train": ("train",), "val": ("validation", "valid", "val", "dev"), "test": ("test",)}


class HFDataset(DataModule):
    """A folder written by `save_to_disk` of the library `datasets`, or a folder of Parquet, Arrow, CSV or JSON files, whose
    splits the library recognizes by their names (train-00000-of-00002.parquet, validation.csv, test/...).

    Without a validation split, a part of train is drawn with the seed; data without splits is split in three with the seed.
    An image becomes uint8 (3, size, size); numbers and arrays become float32.
    """

    def __init__(
        self,
        data_dir: str,
        inputs: str | list[str],
        target: str = "label",
        size: int = 64,
        test_fraction: float = 0.1,
        num_workers: int = WORKERS,
        **loading: Any,
    ) -> None:
        check_at_least(1, size=size)
        if not Path(data_dir).is_dir():
            raise ValueError(f"data_dir={data_dir}: no such folder: {Path(data_dir).absolute()}; use a folder with data")
        super().__init__(num_workers=num_workers, **loading)
        tables = _tables(Path(data_dir).absolute())
        columns = [inputs] if isinstance(inputs, str) else inputs
        targets, outputs, names = _targets(tables, target)
        self.rows = {split: Rows(table, columns, targets[split], size) for split, table in tables.items()}
        self.test_fraction = 0.0 if len(tables) > 1 else test_fraction
        self.has_test = "test" in tables or self.test_fraction > 0
        first, _ = self.rows["train"].__getitems__([0])
        self.spec = DataSpec(tuple(first.shape[1:]), outputs, names)

    def load(self) -> Splits:
        """Return the rows of each split."""
        return self.drawn(**self.rows, test_fraction=self.test_fraction)


def _tables(folder: Path) -> dict[str, Any]:
    """Return the tables of train, val and test; data without splits is returned as train."""
    import datasets  # pyright: ignore[reportMissingImports]  it is optional

    is_saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    loaded: Any = datasets.load_from_disk(str(folder)) if is_saved else datasets.load_dataset(str(folder))
    if not isinstance(loaded, dict):
        return {"train": loaded}
    if len(loaded) == 1:
        return {"train": next(iter(loaded.values()))}
    return {split: loaded[name] for split, names in _NAMES.items() for name in names if name in loaded}


def _targets(tables: dict[str, Any], column: str) -> tuple[dict[str, Tensor], int, tuple[str, ...] | None]:
    """Return each split's regression targets (length, outputs) or class indices (length,), the number of outputs, and the names
    of classes that have names."""
    values = {split: numpy.asarray(table[column][:]) for split, table in tables.items()}
    if values["train"].dtype.kind == "f":
        targets = {split: torch.tensor(rows, dtype=torch.float32).reshape(len(rows), -1) for split, rows in values.items()}
        return targets, targets["train"].shape[1], None
    names = getattr(tables["train"].features[column], "names", None)  # a ClassLabel has names; its values are indices
    if values["train"].dtype.kind == "U":
        names = sorted({*values["train"].tolist()})
        numbers = {name: number for number, name in enumerate(names)}
        values = {split: [numbers[name] for name in rows.tolist()] for split, rows in values.items()}
    targets = {split: torch.as_tensor(rows) for split, rows in values.items()}
    return targets, len(names or range(int(targets["train"].max()) + 1)), None if names is None else tuple(names)


class Rows(Dataset[Any]):
    """One split, whose rows are fetched a batch at a time."""

    def __init__(self, table: Any, columns: Sequence[str], targets: Tensor, size: int) -> None:
        from datasets import Image  # pyright: ignore[reportMissingImports]

        self.columns, self.targets, self.shape = columns, targets, (3, size, size)
        self.has_images = len(columns) == 1 and isinstance(table.features[columns[0]], Image)
        if self.has_images:
            table = table.cast_column(columns[0], Image(decode=False))  # bytes or a path: decoded below
        self.table = table.select_columns(columns)

    def __len__(self) -> int:
        return len(self.table)

    def __getitems__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs (n, *shape) and targets of rows."""
        rows = self.table[list(ids)]
        if self.has_images:
            images = zip(ids, rows[self.columns[0]], strict=True)
            inputs = torch.stack([decode(file["bytes"] or file["path"], self.shape, f"row {row}") for row, file in images])
        else:
            parts = [numpy.asarray(rows[column], numpy.float32) for column in self.columns]
            inputs = torch.from_numpy(parts[0] if parts[0].ndim > 1 else numpy.stack(parts, axis=1))
        return inputs, self.targets[list(ids)]
