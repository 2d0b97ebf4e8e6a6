"""Base of all datamodules: splits, loaders, batch sizes, standardisation."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from lockstep.config.construct import naming
from lockstep.datamodules.augment import CropFlip
from lockstep.datamodules.batches import Augment, Batch, Batches
from lockstep.datamodules.loaders import make_loader
from lockstep.datamodules.options import DataOption, Order, checked_options
from lockstep.datamodules.samplers import BatchIndices, EvalSampler, TrainSampler
from lockstep.datamodules.splits import Splits, check_part, draw_fold, seeded_split, subset
from lockstep.errors import check_at_least, config_error
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.steps import batches_trained

if TYPE_CHECKING:  # else where it is needed: the import takes a second
    from sklearn.preprocessing import StandardScaler

log = logging.getLogger(__name__)
# Of what a checkpoint says about the order of samples, the keys that set it, and what may be another when a run continues.
_KEYS = {"seed": "seed", "length": "datamodule"}
_MAY_CHANGE = {"epoch", "consumed", "samples_per_batch", "world_size"}


def order_key(name: str) -> str:
    """Returns the config key that sets one of the facts of an order."""
    return _KEYS.get(name, f"datamodule.{name}")


@dataclass(frozen=True)
class DataSpec:
    """Shapes of the data, which a net needs: input_shape without the batch, (channels, height, width) for images;
    num_outputs classes or regression targets; class_names where there are classes."""

    input_shape: tuple[int, ...]
    num_outputs: int
    class_names: tuple[str, ...] | None = None


class DataModule(LightningDataModule):
    """A subclass says what the data is: `spec` when constructed, `load` for the splits, `prepare_data` for downloads.

    What each argument means stands beside its default in conf/datamodule/base.yaml, and for a subclass in its own file there.
    """

    spec: DataSpec
    test_note: str | None = None  # what the test split has that validation has not, said below a run's results
    has_test: bool = True  # where it is known before the data is loaded

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
        **options: DataOption | None,
    ) -> None:
        super().__init__()
        check_at_least(1, batch_size=batch_size, global_batch_size=global_batch_size)
        check_at_least(0, num_workers=num_workers, seed=seed)
        check_at_least(2, folds=folds)
        if not 0 <= val_fraction <= 0.9:
            raise ValueError(f"val_fraction={val_fraction}: leaves nothing to train on; use 0 to 0.9")
        if not 0 <= fold < (folds or 1):
            raise ValueError(f"fold={fold}: is not one of datamodule.folds={folds}; use 0 to {(folds or 1) - 1}")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers=true: there are no workers; use datamodule.num_workers of at least 1")
        self.batch_size, self.global_batch_size = batch_size or global_batch_size or 64, global_batch_size
        self.drop_last, self.shuffle, self.seed, self.val_fraction = drop_last, shuffle, seed, val_fraction
        self.folds, self.fold = folds, fold
        self.standardize, self.options = standardize, checked_options(type(self).__name__, options)
        with naming("datamodule.augment"):
            self.augment: Augment | None = CropFlip(**augment, seed=seed) if augment else None
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.persistent_workers = num_workers > 0 if persistent_workers is None else persistent_workers
        self.scaler: StandardScaler | None = None
        self.samples_per_epoch: int | None = None  # over all processes, known once the training loader is
        self._splits: Splits | None = None
        self.start = (0, 0)  # the epoch, and how many samples of its global order are consumed
        self.find_place: Callable[[dict[str, int], list[str]], int] | None = None  # see load_state_dict

    @abstractmethod
    def load(self) -> Splits:
        """Reads the data; called once per process, after `prepare_data` has run once per node."""

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
        self.start = (0, 0)
        vars(self).pop("_accumulate", None)  # of another trainer
        self.shuffle = self.shuffle and not getattr(self.trainer, "overfit_batches", 0)  # as Lightning switches it off
        if stage == "fit" and self.standardize and self.scaler is None:
            self.scaler = self._fit_scaler()

    def train_dataloader(self) -> DataLoader[Batch]:
        sampler = self._train_sampler(len(self.splits.train), start=self.start, orders=list(self._orders.values()))
        limit = self.trainer.limit_train_batches if self.trainer else 1.0  # a number, or a fraction
        batches = min(limit, len(sampler)) if isinstance(limit, int) else int(limit * len(sampler))
        self.samples_per_epoch = min(batches * self.order_facts()["samples_per_batch"], sampler.samples_per_epoch)
        log.info(f"{self.samples_per_epoch} of {len(self.splits.train)} samples per epoch, in {batches} batches per process")
        return self._loader(self.splits.train, sampler, self.augment)

    def _train_sampler(self, length: int, **order: Any) -> TrainSampler:
        """Raises ConfigError where so many samples are too few for a step, or where no plan has divided the global batch."""
        parts = self._share[1] * self._accumulate
        total = self.global_batch_size or self.batch_size * parts
        if math.ceil(total / parts) != self.batch_size or total % self._accumulate:
            accepted = (
                f"is divided by lockstep.build; accepted for a batch_size of {self.batch_size} is {self.batch_size * parts}"
            )
            raise config_error("datamodule.global_batch_size", total, accepted)
        given = {"accumulate": self._accumulate, "shuffle": self.shuffle, "seed": self.seed, "drop_last": self.drop_last}
        if self.global_batch_size is not None:
            order["samples_per_batch"] = total // self._accumulate
        return TrainSampler(length, self.batch_size, *self._share, **given, **order)

    def state_dict(self) -> dict[str, int]:
        """Says where in the data training is, in samples of the epoch's global order, so that it holds at any world size."""
        if self.trainer is None or self.samples_per_epoch is None:
            return {}
        batches = batches_trained(self.trainer)
        order = self.order_facts()
        consumed = min(batches * order["samples_per_batch"], self.samples_per_epoch)
        return {"epoch": self.trainer.current_epoch, "consumed": consumed} | order

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Raises ConfigError where a run would continue within an epoch in another order, or in other global batches; unless
        there is `find_place`, which is given what was saved, and what is another now, and returns how many samples of the epoch
        count as consumed."""
        if not self._is_trained:
            return
        now, consumed = self.order_facts(), state_dict["consumed"]
        saved = {"shuffle": now["shuffle"]} | state_dict  # an older checkpoint does not say it
        names = sorted((now | saved).keys() - _MAY_CHANGE)
        other = [name for name in names if now.get(name, 0) != saved.get(name, 0)]  # 0 is of an option that is not there
        if consumed and self.find_place is not None:
            consumed = self.find_place(state_dict, other)
        elif consumed and other:
            accepted = f"the checkpoint is from within an epoch, with {saved.get(other[0], 0)}; use the same"
            raise config_error(order_key(other[0]), now.get(other[0], 0), accepted)
        strategy = self.trainer and self.trainer.strategy
        if now["world_size"] != state_dict["world_size"] and not getattr(strategy, "has_same_bits", False):
            begun = f"continuing on {now['world_size']} process(es) what {state_dict['world_size']} began"
            log.info(f"{begun}: the same global batches, but sums in another order, so that the weights will not be bit-equal")
        self.start = (state_dict["epoch"], consumed)

    def order_facts(self) -> dict[str, int]:
        """Return what decides which samples an epoch's batches have, and how many, over all processes."""
        global_batch_size = self.global_batch_size or self.batch_size * self._share[1] * self._accumulate
        return {
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "length": len(self.splits.train),
            "global_batch_size": global_batch_size,
            "samples_per_batch": global_batch_size // self._accumulate,
            "world_size": self._share[1],
        } | {name: order.identity for name, order in self._orders.items()}

    @cached_property
    def _orders(self) -> dict[str, Order]:
        orders = {name: option.reorder(self.splits.train) for name, option in self.options.items()}
        return {name: order for name, order in orders.items() if order is not None}

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        return [] if self.splits.val is None else self.eval_loader(self.splits.val)

    def test_dataloader(self) -> DataLoader[Batch] | list[Any]:
        return [] if self.splits.test is None else self.eval_loader(self.splits.test)

    def predict_dataloader(self) -> DataLoader[Batch] | list[Any]:
        return self.test_dataloader()

    def drawn(self, train: Any, val: Any = None, test: Any = None, test_fraction: float = 0.0) -> Splits:
        """The splits of data that may have no validation of its own: it is then a part of train, drawn with the seed. A
        `test_fraction` of train, for data that is not split, is drawn before."""
        ids = torch.arange(len(train))
        if test_fraction:
            ids, held_out = seeded_split(len(train), test_fraction, self.seed)
            test = subset(train, held_out) or None
        if val is None:
            rest, held_out = self.split(len(ids))
            train, val = subset(train, ids[rest]), subset(train, ids[held_out]) or None
        return Splits(train, val, test)

    def describe(self) -> dict[str, int]:
        """Return how many samples each split has, for the record of a run."""
        return {name: 0 if split is None else len(split) for name, split in vars(self.splits).items()}

    def split(self, length: int) -> tuple[Tensor, Tensor]:
        """Ids of `length` training samples as (training, validation), drawn with the seed, each in ascending order."""
        if self.folds is None:
            if self._is_trained:
                check_part("val_fraction", self.val_fraction, length)
            return seeded_split(length, self.val_fraction, self.seed)
        return draw_fold(length, self.folds, self.fold, self.seed)

    def refuse_folds(self) -> None:
        """Raises ConfigError if folds are asked of data with a validation split of its own: each would be the same run."""
        if self.folds is not None:
            accepted = "this data has a validation split of its own, which is not drawn; use null"
            raise config_error("datamodule.folds", self.folds, accepted)

    def eval_loader(self, dataset: Any) -> DataLoader[Batch]:
        """Every sample exactly once, over all processes, unaugmented."""
        sampler = EvalSampler(len(dataset), self.batch_size, *self._share)
        return self._loader(dataset, sampler, None)

    def _loader(self, dataset: Any, sampler: DistributedSampler[BatchIndices], augment: Augment | None) -> DataLoader[Batch]:
        loading: dict[str, Any] = {"num_workers": self.num_workers, "persistent_workers": self.persistent_workers}
        loading["pin_memory"] = self.pin_memory and self._device.type == "cuda"
        return make_loader(Batches(dataset, augment, self.seed), sampler, **loading)

    @property
    def _is_trained(self) -> bool:
        """Return whether the data is for a training."""
        return self.trainer is not None and self.trainer.state.fn == "fit"

    @property
    def _share(self) -> tuple[int, int]:
        """Return which part of each global batch this process has, and of how many."""
        return dp_rank_and_size(self.trainer) if self.trainer else (0, 1)

    @property
    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer else torch.device("cpu")

    @cached_property
    def _accumulate(self) -> int:
        """Returns that of the config, by which epochs are divided, whatever a callback of Lightning's makes of it later."""
        return self.trainer.accumulate_grad_batches if self.trainer else 1

    def _fit_scaler(self) -> "StandardScaler":
        """Fits it to the training split alone, unaugmented, a batch at a time; uint8 counts as 0 to 1."""
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler()
        train = Batches(self.splits.train)
        for ids in torch.arange(len(train)).split(4096):
            scaler.partial_fit(as_features(train[BatchIndices(ids, 0, 1.0)].inputs))
        return scaler


def as_features(inputs: Tensor) -> numpy.ndarray:
    """Rows for StandardScaler: images (n, channels, height, width) to (n*height*width, channels), all else to (n, -1)."""
    values = inputs.double() / 255 if inputs.dtype == torch.uint8 else inputs.double()
    return (values.movedim(1, -1).flatten(0, 2) if values.ndim == 4 else values.flatten(1)).numpy()
