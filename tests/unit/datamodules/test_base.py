"""What all datamodules share: standardisation, batch sizes, the loaders of a rank."""

import logging
import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from synthetic import Images, Vectors
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.datamodules import DataModule, Digits
from lockstep.datamodules.base import as_features
from lockstep.datamodules.batches import Batch
from lockstep.datamodules.samplers import EvalSampler, TrainSampler
from lockstep.datamodules.splits import Splits
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.preprocess import Preprocess
from lockstep.runs.results import lacking_for_test


def pretend(
    datamodule: DataModule, global_rank: int, world_size: int, accumulate: int = 1, limit: float = 1.0, device: str = "cpu"
) -> DataModule:
    """As if attached to the trainer of one rank."""
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(fn="fit"),
        distributed_sampler_kwargs={"rank": global_rank, "num_replicas": world_size},
        accumulate_grad_batches=accumulate,
        limit_train_batches=limit,
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    datamodule.trainer = trainer
    return datamodule


every_kind_of_data = pytest.mark.parametrize(
    "make",
    [
        partial(Digits, standardize=True),
        partial(Images, standardize=True),  # bytes
        partial(Vectors, standardize=True, length=5000),  # more than one part of 4096
    ],
    ids=["floats", "bytes", "vectors"],
)


@every_kind_of_data
def test_standardisation_is_scikit_learns_fitted_on_the_training_split_alone(make: Callable[[], DataModule]) -> None:
    datamodule = make()
    datamodule.setup("fit")
    train = datamodule.splits.train.inputs.double().numpy() / (255 if datamodule.splits.train.inputs.dtype == torch.uint8 else 1)
    if train.ndim == 4:  # per channel: every pixel of every image is an observation
        train = numpy.moveaxis(train, 1, -1).reshape(-1, train.shape[1])
    expected: Any = StandardScaler().fit(train)
    scaler: Any = datamodule.scaler
    assert scaler.n_samples_seen_ == len(train)  # neither validation nor test data
    numpy.testing.assert_allclose(scaler.mean_, expected.mean_, rtol=1e-12, atol=1e-14)
    numpy.testing.assert_allclose(scaler.scale_, expected.scale_, rtol=1e-12)
    assert not numpy.allclose(scaler.mean_, as_features(datamodule.splits.test.inputs).mean(axis=0), rtol=1e-6)


@every_kind_of_data
def test_standardised_training_data_has_mean_zero_and_deviation_one(make: Callable[[], DataModule]) -> None:
    datamodule = make()
    datamodule.setup("fit")
    preprocess = Preprocess(datamodule.spec.input_shape)
    assert datamodule.scaler is not None
    preprocess.fit(datamodule.scaler)
    features = as_features(preprocess(datamodule.splits.train.inputs))
    numpy.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-5)
    numpy.testing.assert_allclose(features.std(axis=0), 1, atol=1e-5)


def test_nothing_is_fitted_unasked_or_for_a_test_alone() -> None:
    plain, tested = Digits(), Digits(standardize=True)
    plain.setup("fit")
    tested.setup("test")
    assert plain.scaler is tested.scaler is None


def test_augmentation_is_refused_for_vectors() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.augment=\{\.\.\.\}: is for images; this data has shape \(10,\)$"):
        Vectors(augment={"flip": True}).setup("fit")


def test_loaders_have_the_samplers_of_their_rank() -> None:
    datamodule = pretend(Digits(batch_size=8, drop_last=False, seed=3), global_rank=1, world_size=2, accumulate=4)
    train, val, test = datamodule.train_dataloader().sampler, datamodule.val_dataloader(), datamodule.test_dataloader().sampler
    assert isinstance(train, TrainSampler)
    assert (train.rank, train.num_replicas, train.samples_per_batch, train.accumulate, train.seed) == (1, 2, 16, 4, 3)
    assert (train.shuffle, train.tail) == (True, 1293 % 64)
    assert not isinstance(val, list)
    for sampler, length in ((val.sampler, 144), (test, 360)):
        assert isinstance(sampler, EvalSampler)
        assert (sampler.length, sampler.rank, sampler.num_replicas, sampler.samples_per_batch) == (length, 1, 2, 16)


def test_samples_per_epoch_are_counted_over_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    datamodule = pretend(Digits(batch_size=32), global_rank=0, world_size=2)
    with caplog.at_level(logging.INFO, "lockstep"):
        datamodule.train_dataloader()
    assert datamodule.samples_per_epoch == 1280  # 1293 // 64 * 64
    assert caplog.messages == ["1280 of 1293 samples per epoch, in 20 batches per process"]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (40, "640 of 1293 samples per epoch, in 40 batches"),
        (0.25, "320 of 1293 samples per epoch, in 20 batches"),
        (99, "1293 of"),
    ],
)
def test_batches_that_a_limit_leaves_out_are_not_counted(limit: float, said: str, caplog: pytest.LogCaptureFixture) -> None:
    datamodule = pretend(Digits(batch_size=8, drop_last=False), global_rank=0, world_size=2, limit=limit)
    with caplog.at_level(logging.INFO, "lockstep"):
        datamodule.train_dataloader()  # 81 batches
    assert caplog.messages[0].startswith(said)
    assert datamodule.samples_per_epoch == int(said.split()[0])


@pytest.mark.parametrize(("world_size", "accumulate"), [(1, 1), (2, 1), (2, 3)])
def test_a_sample_counts_the_same_at_any_number_of_ranks(world_size: int, accumulate: int) -> None:
    batch_size = 24 // world_size // accumulate
    datamodule = pretend(Digits(batch_size=batch_size, global_batch_size=24), 0, world_size, accumulate)
    batch = next(iter(datamodule.train_dataloader()))
    assert batch.inputs.shape == (batch_size, 1, 8, 8)
    assert batch.loss_weight == world_size * accumulate / 24
    test = next(iter(datamodule.test_dataloader()))
    assert len(test.ids) == batch_size


def test_a_global_batch_that_no_plan_has_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.global_batch_size=24: is divided by lockstep.build; .* of 24 is 120$"):
        pretend(Digits(global_batch_size=24), 0, world_size=5).train_dataloader()


def test_only_training_images_are_augmented() -> None:
    datamodule = Images(batch_size=100, augment={"crop": 2, "flip": True}, shuffle=False)
    train, test = next(iter(datamodule.train_dataloader())), next(iter(datamodule.test_dataloader()))
    assert not torch.equal(train.inputs, datamodule.splits.train.inputs[:100])
    assert torch.equal(test.inputs, datamodule.splits.test.inputs[test.ids])


@pytest.mark.parametrize(
    ("device", "options", "expected"), [("cuda", {}, True), ("cuda", {"pin_memory": False}, False), ("cpu", {}, False)]
)
def test_batches_are_page_locked_on_gpus_only(device: str, options: dict[str, bool], expected: bool) -> None:
    datamodule = pretend(Digits(**options), 0, 1, device=device)
    loaders: list[Any] = [datamodule.train_dataloader(), datamodule.val_dataloader(), datamodule.test_dataloader()]
    assert [loader.pin_memory for loader in loaders] == [expected] * 3


@pytest.mark.parametrize(("name", "key"), [("seed", "seed"), ("shuffle", "datamodule.shuffle")])
def test_an_epoch_is_not_continued_in_another_order(name: str, key: str) -> None:
    datamodule = pretend(Digits(batch_size=32), 0, 1)
    saved = datamodule.order_facts() | {"epoch": 1, "consumed": 64}
    datamodule.load_state_dict(saved)
    datamodule.load_state_dict({fact: value for fact, value in saved.items() if fact != "shuffle"})  # of an older checkpoint
    with pytest.raises(ConfigError, match=f"^{key}=.*within an epoch, with 7; use the same"):
        datamodule.load_state_dict(saved | {name: 7})
    datamodule.load_state_dict(saved | {name: 7, "consumed": 0})


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


class OwnProcess(Dataset[tuple[Tensor, int]]):
    """Samples whose target is the process that has fetched them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), os.getpid()


class OfWorkers(DataModule):
    def load(self) -> Splits:
        return Splits(OwnProcess(), None, None)


def test_the_workers_of_an_epoch_are_kept_for_the_next() -> None:
    def epochs(**options: Any) -> tuple[list[list[float]], set[int]]:
        loader = OfWorkers(batch_size=3, **options).train_dataloader()
        batches: list[list[Batch]] = []
        for epoch in range(3):
            cast("TrainSampler", loader.sampler).set_epoch(epoch)
            batches.append(list(loader))
        orders = [[float(x) for batch in epoch for x in batch.inputs] for epoch in batches]
        return orders, {int(pid) for epoch in batches for batch in epoch for pid in batch.targets}

    here, kept, ended = epochs(), epochs(num_workers=1), epochs(num_workers=1, persistent_workers=False)
    assert here[0] == kept[0] == ended[0]
    assert here[0][0] != here[0][1]
    assert here[1] == {os.getpid()}
    assert [len(kept[1] - here[1]), len(ended[1])] == [1, 3]
