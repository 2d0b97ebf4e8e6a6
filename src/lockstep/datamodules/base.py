"""Base class of all datamodules: splits, loaders, batch sizes, standardisation."""

import logging
import signal
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Subset, TensorDataset

from lockstep.config.construct import naming
from lockstep.datamodules.augment import CropFlip
from lockstep.datamodules.batches import Augment, Batches, rows
from lockstep.datamodules.seeded import EpochOrder, GlobalBatches, shuffled
from lockstep.errors import check_at_least, config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.noise import derive_seed
from lockstep.runs.shares import dp_rank_and_size

if TYPE_CHECKING:  # otherwise imported where it is needed, as the import takes a second
    from sklearn.preprocessing import StandardScaler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSpec:
    """Shapes of the data, from which a net is built: input_shape without the batch, (channels, height, width) for images;
    num_outputs, the number of classes or regression targets; class_names if there are classes."""

    input_shape: tuple[int, ...]
    num_outputs: int
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Splits:
    """Three datasets of (input, target) pairs; a missing validation or test split is None."""

    train: Any
    val: Any | None
    test: Any | None


class DataModule(LightningDataModule):
    """Base class. A subclass sets `spec` in its constructor, and defines `load` for the splits and `prepare_data` for downloads.

    The arguments are explained in conf/datamodule/base.yaml, and those of a subclass in its own file there. A curriculum has a
    method `reorder(train)`, which returns the `reorder` of an EpochOrder.
    """

    spec: DataSpec
    has_test: bool = True  # may be set to False before the data is loaded

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        drop_last: bool = True,
        shuffle: bool = True,
        num_workers: int = 0,
        pin_memory: bool = True,
        val_fraction: float = 0.1,
        folds: int | None = None,
        fold: int = 0,
        seed: int = 0,
        standardize: bool = False,
        augment: dict[str, Any] | None = None,
        curriculum: Any = None,
    ) -> None:
        super().__init__()
        check_at_least(1, batch_size=batch_size, global_batch_size=global_batch_size)
        check_at_least(0, num_workers=num_workers, seed=seed)
        check_at_least(2, folds=folds)
        if not 0 <= val_fraction <= 0.9:
            raise ValueError(f"val_fraction={val_fraction}: leaves nothing to train on; use 0 to 0.9")
        if not 0 <= fold < (folds or 1):
            raise ValueError(f"fold={fold}: is not one of datamodule.folds={folds}; use 0 to {(folds or 1) - 1}")
        self.batch_size, self.global_batch_size = batch_size or global_batch_size or 64, global_batch_size
        self.drop_last, self.shuffle, self.seed = drop_last, shuffle, seed
        self.val_fraction, self.folds, self.fold = val_fraction, folds, fold
        self.standardize, self.curriculum = standardize, curriculum
        with naming("datamodule.augment"):
            self.augment: Augment | None = CropFlip(**augment, seed=seed) if augment else None
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.scaler: StandardScaler | None = None
        self.samples_per_epoch: int | None = None  # over all processes; set when the training loader is made
        self._has_split = False

    @abstractmethod
    def load(self) -> Splits:
        """Read the data; called once per process, after `prepare_data` has run once per node."""

    @cached_property
    def splits(self) -> Splits:
        """The loaded data. Raise ConfigError for folds of data that is not split by `split`: all would be the same run."""
        splits = self.load()
        if self.folds is not None and not self._has_split:
            raise config_error("datamodule.folds", self.folds, "this data has a validation split of its own; use null")
        if self.has_test and splits.test is None:
            self.has_test = False
            log.info("This data has no test split: nothing will be tested")
        return splits

    def drawn(self, train: Any, val: Any = None, test: Any = None, test_fraction: float = 0.0) -> Splits:
        """Return the splits. If there is no `val`, draw it from train with the seed; with a `test_fraction`, for data that is not
        split, draw the test split from train before that."""
        ids = torch.arange(len(train))
        if test_fraction:
            order, length = shuffled(len(train), self.seed), round(len(train) * test_fraction)
            ids, test = order[length:].sort().values, subset(train, order[:length].sort().values) or None
        if val is None:
            rest, held_out = self.split(len(ids))
            train, val = subset(train, ids[rest]), subset(train, ids[held_out]) or None
        return Splits(train, val, test)

    def split(self, length: int) -> tuple[Tensor, Tensor]:
        """Draw (training, validation) ids of `length` training samples with the seed, each in ascending order."""
        self._has_split = True
        order, held_out = shuffled(length, self.seed), round(length * self.val_fraction)
        parts = [order[:held_out], order[held_out:]] if self.folds is None else [*order.tensor_split(self.folds)]
        val = parts.pop(self.fold)
        return torch.cat(parts).sort().values, val.sort().values

    def describe(self) -> dict[str, int]:
        """Return the number of samples in each split, for the record of a run."""
        return {name: 0 if split is None else len(split) for name, split in vars(self.splits).items()}

    def setup(self, stage: str) -> None:
        """Fit a StandardScaler to the training split, unaugmented, a batch at a time; uint8 is scaled to 0..1."""
        if stage != "fit" or not self.standardize or self.scaler is not None:
            return
        from sklearn.preprocessing import StandardScaler

        self.scaler, train = StandardScaler(), Batches(self.splits.train)
        for ids in torch.arange(len(train)).split(4096):
            self.scaler.partial_fit(as_features(train[ids.tolist()][0]))

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the batches of one process, or of the global batches, which lockstep.plain_lightning divides. Raise
        ConfigError if a step takes more samples than there are."""
        length, step = len(self.splits.train), self.samples_per_batch * self._parts[1]
        samples = length - length % step if self.drop_last else length
        if not samples:
            name = "batch_size" if self.global_batch_size is None else "global_batch_size"
            why = f"a step has {step} samples, and the training split {length}; use a smaller one, or datamodule.drop_last=false"
            raise config_error(f"datamodule.{name}", getattr(self, name), why)
        self.samples_per_epoch = samples
        log.info(f"{samples} of {length} samples per epoch{', in whole batches' * (samples < length)}")
        reorder = None if self.curriculum is None else self.curriculum.reorder(self.splits.train)
        order = EpochOrder(length, samples, self.seed if self.shuffle else None, reorder)
        return self._loader(self.splits.train, order, self.augment)

    @property
    def samples_per_batch(self) -> int:
        """Number of samples in a training batch over all processes."""
        processes, accumulate = self._parts
        return self.batch_size * processes if self.global_batch_size is None else self.global_batch_size // accumulate

    @property
    def _parts(self) -> tuple[int, int]:
        """Number of data-parallel groups, and number of accumulated batches."""
        return (dp_rank_and_size(self.trainer)[1], self.trainer.accumulate_grad_batches) if self.trainer else (1, 1)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        return self.eval_loader(self.splits.val)

    def test_dataloader(self) -> DataLoader[Any] | list[Any]:
        return self.eval_loader(self.splits.test)

    def predict_dataloader(self) -> DataLoader[Any] | list[Any]:
        return self.eval_loader(self.splits.test)

    def eval_loader(self, dataset: Any) -> DataLoader[Any] | list[Any]:
        """Return a loader of every sample exactly once, unaugmented, in a fixed shuffled order, so that the first batches of data
        sorted by class have all classes. Without a dataset there is none."""
        if dataset is None:
            return []
        order: Any = shuffled(len(dataset), derive_seed(len(dataset))).tolist()
        return self._loader(dataset, order, None)

    def _loader(self, dataset: Any, order: Any, augment: Augment | None) -> DataLoader[Any]:
        if self.global_batch_size is None:
            batches = BatchSampler(order, self.batch_size, drop_last=False)
        else:
            batches = GlobalBatches(order, self.samples_per_batch, drop_last=False)
        return DataLoader(
            Batches(dataset, self.seed, augment),
            batch_size=None,
            sampler=batches,
            collate_fn=unchanged,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.pin_memory and torch.cuda.is_available(),
            worker_init_fn=ignore_sigterm,
        )


def subset(dataset: Any, ids: Tensor) -> TensorDataset | Subset[Any]:
    """Return the samples with these ids; a TensorDataset is copied, so that a batch comes from one tensor."""
    is_copied = type(dataset) is TensorDataset  # a subclass may be on disk
    return TensorDataset(*rows(dataset, ids)) if is_copied else Subset(dataset, ids.tolist())


def as_features(inputs: Tensor) -> numpy.ndarray:
    """Reshape images (n, channels, height, width) to (n*height*width, channels) for StandardScaler, other inputs to (n, -1)."""
    values = inputs.double() / 255 if inputs.dtype == torch.uint8 else inputs.double()
    return (values.movedim(1, -1).flatten(0, 2) if values.ndim == 4 else values.flatten(1)).numpy()


def unchanged(batch: Any) -> Any:
    return batch


def ignore_sigterm(_: int) -> None:
    """Ignore SIGTERM in a data worker. If a stop signal reaches the whole process group, the run needs its workers until the next
    step boundary, and ends them itself; torch's handler would end them at once and fail the run."""
    if STOP_SIGNALS.process:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
