"""Base class of all datamodules: splits, loaders, batch sizes, standardisation."""

import logging
import signal
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from lockstep.config.construct import naming
from lockstep.datamodules.augment import CropFlip
from lockstep.datamodules.batches import Augment, Batches
from lockstep.datamodules.samplers import EpochOrder, GlobalBatches, Reorder, shuffled
from lockstep.datamodules.splits import Splits, draw_fold, seeded_split, subset
from lockstep.errors import ConfigError, check_at_least, config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.noise import derive_seed
from lockstep.runs.shares import dp_rank_and_size

if TYPE_CHECKING:  # otherwise imported where it is needed, as the import takes a second
    from sklearn.preprocessing import StandardScaler

log = logging.getLogger(__name__)


class Curriculum(Protocol):
    """Decide which samples are used when. `reorder` returns a function that maps an epoch's order (length,) and the epoch to an
    order."""

    def reorder(self, train: Any) -> Reorder: ...


@dataclass(frozen=True)
class DataSpec:
    """Shapes of the data, from which a net is built: input_shape without the batch, (channels, height, width) for images;
    num_outputs, the number of classes or regression targets; class_names if there are classes."""

    input_shape: tuple[int, ...]
    num_outputs: int
    class_names: tuple[str, ...] | None = None


class DataModule(LightningDataModule):
    """Base class. A subclass sets `spec` in its constructor, and defines `load` for the splits and `prepare_data` for downloads.

    The arguments are explained in conf/datamodule/base.yaml, and those of a subclass in its own file there.
    """

    spec: DataSpec
    test_note: str | None = None  # a remark on how the test split differs from validation, printed below a run's results
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
        persistent_workers: bool | None = None,
        val_fraction: float = 0.1,
        folds: int | None = None,
        fold: int = 0,
        seed: int = 0,
        standardize: bool = False,
        augment: dict[str, Any] | None = None,
        curriculum: Curriculum | None = None,
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
        self.drop_last, self.shuffle, self.seed, self.val_fraction = drop_last, shuffle, seed, val_fraction
        self.folds, self.fold = folds, fold
        self.standardize, self.curriculum = standardize, curriculum
        with naming("datamodule.augment"):
            self.augment: Augment | None = CropFlip(**augment, seed=seed) if augment else None
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.persistent_workers = num_workers > 0 if persistent_workers is None else persistent_workers
        self.scaler: StandardScaler | None = None
        self.samples_per_epoch: int | None = None  # over all processes; set when the training loader is made
        self._splits: Splits | None = None

    @abstractmethod
    def load(self) -> Splits:
        """Read the data; called once per process, after `prepare_data` has run once per node."""

    @property
    def splits(self) -> Splits:
        if self._splits is None:
            self._splits = self.load()
            if self.has_test and self._splits.test is None:
                self.has_test = False
                log.info("This data has no test split: nothing will be tested")
        return self._splits

    def setup(self, stage: str) -> None:
        if isinstance(self.augment, CropFlip):
            self.augment.check(self.spec.input_shape)
        if stage == "fit" and self.standardize and self.scaler is None:
            self.scaler = self._fit_scaler()

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the batches of one process: with a global_batch_size, divided only by the accumulated batches. Raise
        ConfigError if a step has more samples than the data."""
        length, (shares, accumulate) = len(self.splits.train), self._parts
        step = self.samples_per_batch * accumulate
        samples = length - length % step if self.drop_last else length
        if not samples:
            raise ConfigError(self._too_long(step, length, shares * accumulate))
        self.samples_per_epoch = samples
        log.info(f"{samples} of {length} samples per epoch")
        order = EpochOrder(length, samples, self.seed if self.shuffle else None, self._reorder)
        return self._loader(self.splits.train, order, self.augment)

    @property
    def samples_per_batch(self) -> int:
        """Number of samples in a training batch over all processes."""
        shares, accumulate = self._parts
        return self.batch_size * shares if self.global_batch_size is None else self.global_batch_size // accumulate

    @property
    def _parts(self) -> tuple[int, int]:
        """Number of data-parallel groups, and number of accumulated batches."""
        return (dp_rank_and_size(self.trainer)[1], self.trainer.accumulate_grad_batches) if self.trainer else (1, 1)

    def _too_long(self, step: int, length: int, parts: int) -> str:
        most, why = length // parts, f"is larger than the training split of {length} samples; use at most"
        if self.global_batch_size is None:
            line = f"datamodule.batch_size={self.batch_size}: the global batch of {step} {why} {most}"
        else:
            line = f"datamodule.global_batch_size={step}: {why} {most * parts}"
        return f"{line}, or datamodule.drop_last=false"

    @cached_property
    def _reorder(self) -> Reorder | None:
        return None if self.curriculum is None else self.curriculum.reorder(self.splits.train)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        return [] if self.splits.val is None else self.eval_loader(self.splits.val)

    def test_dataloader(self) -> DataLoader[Any] | list[Any]:
        return [] if self.splits.test is None else self.eval_loader(self.splits.test)

    def predict_dataloader(self) -> DataLoader[Any] | list[Any]:
        return self.test_dataloader()

    def drawn(self, train: Any, val: Any = None, test: Any = None, test_fraction: float = 0.0) -> Splits:
        """Return the splits. If there is no `val`, draw it from train with the seed; with a `test_fraction`, for data that is not
        split, draw the test split from train before that."""
        ids = torch.arange(len(train))
        if test_fraction:
            ids, held_out = seeded_split(len(train), test_fraction, self.seed)
            test = subset(train, held_out) or None
        if val is None:
            rest, held_out = self.split(len(ids))
            train, val = subset(train, ids[rest]), subset(train, ids[held_out]) or None
        return Splits(train, val, test)

    def describe(self) -> dict[str, int]:
        """Return the number of samples in each split, for the record of a run."""
        return {name: 0 if split is None else len(split) for name, split in vars(self.splits).items()}

    def split(self, length: int) -> tuple[Tensor, Tensor]:
        """Draw (training, validation) ids of `length` training samples with the seed, each in ascending order."""
        if self.folds is None:
            return seeded_split(length, self.val_fraction, self.seed)
        return draw_fold(length, self.folds, self.fold, self.seed)

    def refuse_folds(self) -> None:
        """Raise ConfigError for folds of data with its own validation split, for which all folds would be the same run."""
        if self.folds is not None:
            accepted = "this data has a validation split of its own, which is not drawn; use null"
            raise config_error("datamodule.folds", self.folds, accepted)

    def eval_loader(self, dataset: Any) -> DataLoader[Any]:
        """Return a loader of every sample exactly once, unaugmented, in a fixed shuffled order, so that the first batches of data
        sorted by class have all classes."""
        order: Any = shuffled(len(dataset), derive_seed(len(dataset))).tolist()
        return self._loader(dataset, order, None)

    def _loader(self, dataset: Any, order: Any, augment: Augment | None) -> DataLoader[Any]:
        if self.global_batch_size is None:
            batches = BatchSampler(order, self.batch_size, drop_last=False)
        else:
            batches = GlobalBatches(order, self.samples_per_batch, drop_last=False)
        loading: dict[str, Any] = {"num_workers": self.num_workers, "persistent_workers": self.persistent_workers}
        loading |= {"pin_memory": self.pin_memory and torch.cuda.is_available(), "worker_init_fn": ignore_sigterm}
        return DataLoader(Batches(dataset, self.seed, augment), batch_size=None, sampler=batches, collate_fn=unchanged, **loading)

    def _fit_scaler(self) -> "StandardScaler":
        """Fit a StandardScaler to the training split, unaugmented, a batch at a time; uint8 is scaled to 0..1."""
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler()
        train = Batches(self.splits.train)
        for ids in torch.arange(len(train)).split(4096):
            scaler.partial_fit(as_features(train[ids.tolist()][0]))
        return scaler


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
