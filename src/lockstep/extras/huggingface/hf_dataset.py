"""Hugging Face data sets on disk."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.config.metrics import VALIDATION
from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.splits import Splits
from lockstep.errors import check_at_least, config_error
from lockstep.extras.images.decoding import WORKERS, decode

NAMES = {"train": ("train",), "val": VALIDATION, "test": ("test",)}


class HFDataset(DataModule):
    """What the library `datasets` has saved by `save_to_disk`, or a folder of Parquet, Arrow, CSV or JSON files, whose splits it
    knows by their names (train-00000-of-00002.parquet, validation.csv, test/...) and keeps as Arrow files in its own cache.

    Without a split for validation it is a seeded part of train; data that is not split is split in three with the seed.
    Images become uint8 (3, size, size), arrays of uint8 (channels, height, width) stay what they are, numbers become float32.
    """

    def __init__(
        self,
        data_dir: str,
        inputs: str | list[str],
        target: str = "label",
        size: int = 64,
        test_fraction: float = 0.1,
        num_workers: int | None = None,
        **loading: Any,
    ) -> None:
        check_at_least(1, size=size)
        if not Path(data_dir).is_dir():
            raise ValueError(f"data_dir={data_dir}: no such folder: {Path(data_dir).absolute()}; use a folder with data")
        tables = _tables(Path(data_dir))
        columns = [inputs] if isinstance(inputs, str) else inputs
        _check_columns(tables, inputs=columns, target=[target])
        targets = Targets(tables["train"], target)
        self.rows = {split: Rows(split, table, columns, targets, size) for split, table in tables.items()}
        train = self.rows["train"]
        if num_workers is None:
            num_workers = WORKERS if train.has_images else 0
        super().__init__(num_workers=num_workers, **loading)
        self.test_fraction = test_fraction
        self.is_split = len(tables) > 1
        self.has_test = "test" in tables if self.is_split else test_fraction > 0
        if "val" in tables:
            self.refuse_folds()
        first, _ = train.__getitems__([0])
        self.spec = DataSpec(tuple(first.shape[1:]), targets.outputs, targets.class_names)

    def load(self) -> Splits:
        return self.drawn(**self.rows, test_fraction=0.0 if self.is_split else self.test_fraction)


def _library() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise config_error("datamodule", "hf_dataset", "the library `datasets` is not installed: pip install datasets") from error


def _tables(folder: Path) -> dict[str, Any]:
    """What there is of train, val and test; data that is not split is train."""
    script = folder / f"{folder.absolute().name}.py"
    if script.is_file():  # earlier versions of the library run it
        raise config_error("datamodule.data_dir", folder, f"has {script.name}, a program; accepted is data alone")
    datasets = _library()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    path = str(folder.absolute())  # a bare name could be one on the hub
    is_saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    try:
        loaded: Any = datasets.load_from_disk(path) if is_saved else datasets.load_dataset(path)
    except Exception as error:  # the library raises what its readers do: ArrowInvalid, DatasetGenerationError, OSError, ...
        reason = " ".join(str(error.__cause__ or error).split())
        raise config_error("datamodule.data_dir", folder, f"not readable as a data set ({reason})") from error
    tables: dict[str, Any] = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    for split, table in tables.items():
        if not len(table):
            raise config_error("datamodule.data_dir", folder, f"its split {split} has no rows")
    if len(tables) == 1:
        return {"train": next(iter(tables.values()))}
    there = {split: [name for name in names if name in tables] for split, names in NAMES.items()}
    if not there["train"]:
        raise config_error("datamodule.data_dir", folder, f"has the splits {', '.join(tables)}; accepted is one named train")
    return {split: tables[names[0]] for split, names in there.items() if names}


def _check_columns(tables: dict[str, Any], **wanted: list[str]) -> None:
    for key, columns in wanted.items():
        for split, table in tables.items():
            if absent := [column for column in columns if column not in table.features]:
                accepted = f"no such column in {split}; accepted is {', '.join(table.features)}"
                raise config_error(f"datamodule.{key}", absent[0], accepted)


class Targets:
    """How a column is predicted, as the training split has it: by floats, or by the numbers of classes.

    Attributes:
        outputs: how many a net needs.
        class_names: by number, where the column has names.
    """

    def __init__(self, table: Any, column: str) -> None:
        self.column = column
        self.class_names: tuple[str, ...] | None = None
        self.numbers: dict[Any, int] = {}  # of classes
        first = numpy.asarray(table.select_columns([column])[0][column])
        self.is_regression = first.dtype.kind == "f" and first.ndim <= 1
        if self.is_regression:
            self.outputs = first.size
            return
        classes = table.unique(column) if first.ndim == 0 else []
        names = getattr(table.features[column], "names", None)  # of a ClassLabel, whose values are numbers
        if names is not None:
            self.class_names, classes = tuple(names), range(len(names))
        elif classes and all(isinstance(value, str) for value in classes):
            self.class_names = classes = tuple(sorted(classes))
        elif not classes or {*classes} != {*range(len(classes))}:
            accepted = "accepted is a column of class numbers from 0 on without a gap, of names, or of floats"
            raise config_error("datamodule.target", column, accepted)
        self.outputs = len(classes)
        self.numbers = {value: number for number, value in enumerate(sorted(classes))}

    def check(self, split: str, table: Any) -> None:
        """Raises ConfigError for a class that the training split does not have, such as the -1 of labels that are kept secret."""
        if not self.is_regression and (unknown := [value for value in table.unique(self.column) if value not in self.numbers]):
            reason = f"in {split} there is {unknown[0]}, which is none of its classes"
            raise config_error("datamodule.target", self.column, reason)

    def encode(self, values: Any) -> Tensor:
        """(n, outputs) floats, or (n,) class numbers."""
        if self.is_regression:
            return torch.tensor(numpy.asarray(values), dtype=torch.float32).reshape(-1, self.outputs)
        return torch.tensor([self.numbers[value] for value in values])


class Rows(Dataset[Any]):
    """One split, whose rows are fetched a whole batch at a time."""

    def __init__(self, split: str, table: Any, columns: Sequence[str], targets: Targets, size: int) -> None:
        image = _library().Image
        targets.check(split, table)
        self.split, self.columns, self.targets, self.shape = split, columns, targets, (3, size, size)
        feature = table.features[columns[0]]
        self.has_images = isinstance(feature, image)
        if self.has_images:
            table = table.cast_column(columns[0], image(decode=False))  # bytes or a path: decoded below
        while hasattr(feature, "feature"):  # of a list
            feature = feature.feature
        self.has_bytes = getattr(feature, "dtype", None) == "uint8"
        self._all = table
        self.table = table.select_columns([*columns, targets.column]).with_format(None if self.has_images else "numpy")

    def __len__(self) -> int:
        return len(self.table)

    def column(self, name: str) -> numpy.ndarray | None:
        """Any one of the data's numbers; None where there is none of that name."""
        if name not in self._all.features:
            return None
        return numpy.asarray(self._all.select_columns([name]).with_format("numpy")[:][name])

    def __getitems__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = self.table[list(ids)]
        return self._images(rows, ids) if self.has_images else self._numbers(rows), self.targets.encode(rows[self.targets.column])

    def _images(self, rows: Any, ids: Sequence[int]) -> Tensor:
        if len(self.columns) > 1:
            raise config_error("datamodule.inputs", [*self.columns], "accepted is one column of images, or several of numbers")
        images = zip(ids, rows[self.columns[0]], strict=True)
        return torch.stack([self._decoded(f"row {row} of {self.split}", image or {}) for row, image in images])

    def _decoded(self, name: str, image: dict[str, Any]) -> Tensor:
        """`image` has the bytes of a file, or a path to one, or both: the path is then what the file was called."""
        content, path = image.get("bytes"), image.get("path")
        return decode(content or path or b"", self.shape, name=f"{name}, {path}" if path else name)

    def _numbers(self, rows: Any) -> Tensor:
        parts = [numpy.asarray(rows[column]) for column in self.columns]
        if any(part.dtype.kind not in "biuf" or (part.ndim > 1 and len(parts) > 1) for part in parts):
            accepted = "accepted is a column of images, of numbers or of arrays of one shape; or several columns of numbers"
            raise config_error("datamodule.inputs", ", ".join(self.columns), accepted)
        values = numpy.stack(parts, axis=1) if parts[0].ndim == 1 else parts[0]
        return torch.tensor(values, dtype=torch.uint8 if self.has_bytes and values.ndim == 4 else torch.float32)
