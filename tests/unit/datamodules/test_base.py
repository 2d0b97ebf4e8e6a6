"""All datamodules: standardisation, batch sizes, the loaders of a rank."""

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from lightning_modules import OwnLoaders
from omegaconf import OmegaConf
from sklearn.preprocessing import StandardScaler
from torch.utils.data import BatchSampler

from lockstep.datamodules import DataModule, Digits
from lockstep.datamodules.base import Splits, as_features
from lockstep.datamodules.from_config import check_data, lacking_for_test
from lockstep.datamodules.random_regression import RandomRegression
from lockstep.datamodules.seeded import Draws, GlobalBatches
from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.errors import ConfigError
from lockstep.models import Classifier

Images = partial(SyntheticImages, (3, 8, 8), num_classes=4, length=500, val_length=100, test_length=200)
VECTORS = {"length": 5000, "val_length": 100, "test_length": 1000, "teacher": False, "noise": 0.0}  # more than one part of 4096
Vectors = partial(RandomRegression, 10, 3, **VECTORS)


def pretend(datamodule: DataModule, world_size: int, accumulate: int = 1) -> DataModule:
    """As if attached to the trainer of the first rank."""
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(fn="fit"),
        distributed_sampler_kwargs={"rank": 0, "num_replicas": world_size},
        accumulate_grad_batches=accumulate,
    )
    datamodule.trainer = trainer
    return datamodule


@pytest.mark.parametrize("make", [Digits, Images, Vectors], ids=["floats", "bytes", "vectors"])
def test_standardisation_is_scikit_learns_fitted_on_the_training_split_alone(make: Callable[..., DataModule]) -> None:
    datamodule = make(standardize=True)
    datamodule.setup("fit")
    inputs = datamodule.splits.train.tensors[0]
    train = inputs.double().numpy() / (255 if inputs.dtype == torch.uint8 else 1)
    if train.ndim == 4:  # per channel: every pixel of every image is an observation
        train = numpy.moveaxis(train, 1, -1).reshape(-1, train.shape[1])
    expected: Any = StandardScaler().fit(train)
    scaler: Any = datamodule.scaler
    assert scaler.n_samples_seen_ == len(train)  # neither validation nor test data
    numpy.testing.assert_allclose(scaler.mean_, expected.mean_, rtol=1e-12, atol=1e-14)
    numpy.testing.assert_allclose(scaler.scale_, expected.scale_, rtol=1e-12)
    assert not numpy.allclose(scaler.mean_, as_features(datamodule.splits.test.tensors[0]).mean(axis=0), rtol=1e-6)


def test_nothing_is_fitted_unasked_or_for_a_test_alone() -> None:
    plain, tested = Digits(), Digits(standardize=True)
    plain.setup("fit")
    tested.setup("test")
    assert plain.scaler is tested.scaler is None


def batches_of(loader: Any) -> Any:
    return loader.sampler


def test_batches_are_the_global_ones_or_each_process_s() -> None:
    divided = pretend(Digits(global_batch_size=48, drop_last=False), 2, accumulate=3)
    batches = batches_of(divided.train_dataloader())
    assert isinstance(batches, GlobalBatches)
    assert (batches.batch_size, len(batches.sampler), divided.samples_per_batch) == (16, 1293, 16)
    grows = pretend(Digits(batch_size=8), 2, accumulate=3)
    batches = batches_of(grows.train_dataloader())
    assert type(batches) is BatchSampler
    assert (batches.batch_size, len(batches.sampler), grows.samples_per_batch) == (8, 1293 // 48 * 48, 16)
    for loader, length in ((divided.val_dataloader(), 144), (divided.test_dataloader(), 360)):
        assert sorted(batches_of(loader).sampler) == [*range(length)]


@pytest.mark.parametrize(("given", "step"), [({"batch_size": 800}, 1600), ({"global_batch_size": 1300}, 1300)])
def test_a_split_smaller_than_the_global_batch_is_refused(given: dict[str, int], step: int) -> None:
    (key,) = given
    line = rf"^datamodule.{key}={given[key]}: a step has {step} samples, and the training split 1293; use a smaller one"
    with pytest.raises(ConfigError, match=line):
        pretend(Digits(**given), 2).train_dataloader()
    assert len(pretend(Digits(**given, drop_last=False), 2).train_dataloader()) > 0


def test_folds_of_data_with_a_validation_split_of_its_own_are_refused() -> None:
    """All of them would be the same run."""
    with pytest.raises(ConfigError, match=r"^datamodule.folds=3: this data has a validation split of its own; use null$"):
        Images(folds=3).describe()


def test_the_first_evaluated_samples_are_of_all_classes_of_sorted_data() -> None:
    """1,000 samples, the first hundred of class 0 and so on; of 50 drawn at random a class is left out with 10 * 0.9^50 = 5 %."""
    first = next(iter(batches_of(Digits(batch_size=50).eval_loader(range(1000)))))
    assert {number // 100 for number in first} == set(range(10))


def test_only_training_images_are_augmented() -> None:
    datamodule = Images(batch_size=100, augment={"crop": 2, "flip": True}, shuffle=False)
    train: Any = datamodule.train_dataloader().dataset
    assert not torch.equal(train[Draws(range(100), 0, range(100))][0], datamodule.splits.train.tensors[0][:100])
    loader = datamodule.test_dataloader()
    numbers = next(iter(batches_of(loader)))
    assert torch.equal(next(iter(loader))[0], datamodule.splits.test.tensors[0][numbers])


class Untested(Digits):
    def load(self) -> Splits:
        return Splits(super().load().train, None, None)


def test_that_there_is_no_test_split_is_known_when_the_data_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """A run offered its evaluation, which failed: it had logged nothing."""
    model, data = Classifier.__new__(Classifier), Untested()
    assert lacking_for_test(model, data) is None
    with caplog.at_level(logging.INFO):
        data.describe()
    assert lacking_for_test(model, data) == "this data has no test split"
    assert caplog.messages == ["This data has no test split: nothing will be tested"]


def test_a_module_with_loaders_of_its_own_takes_no_other_data() -> None:
    cfg = OmegaConf.create({"test": False})
    check_data(cfg, OwnLoaders(), None)
    with pytest.raises(ConfigError, match=r"^datamodule=Digits: OwnLoaders has loaders of its own; use datamodule=null"):
        check_data(cfg, OwnLoaders(), Digits())
