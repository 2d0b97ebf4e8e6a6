"""What data there is and how it is split: the digits, MNIST, and data made up from a seed."""

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from lockstep.datamodules import DataModule, Digits, InMemory, RandomRegression, SyntheticImages, TorchvisionImages
from lockstep.datamodules.base import as_features, seeded_split
from lockstep.datamodules.samplers import EvalSampler, TrainSampler
from lockstep.errors import ConfigError
from lockstep.models.preprocess import Preprocess


def images(shape: tuple[int, int, int] = (3, 8, 8), **options: Any) -> SyntheticImages:
    return SyntheticImages(shape, num_classes=4, length=500, val_length=100, test_length=200, **options)


def regression(teacher: bool = True, noise: float = 0.1, length: int = 1000, **options: Any) -> RandomRegression:
    return RandomRegression(10, 3, length, val_length=100, test_length=1000, teacher=teacher, noise=noise, **options)


def pretend(datamodule: DataModule, global_rank: int, world_size: int, accumulate: int = 1, limit: float = 1.0) -> DataModule:
    """As if attached to the trainer of one rank."""
    trainer: Any = SimpleNamespace(
        global_rank=global_rank, world_size=world_size, accumulate_grad_batches=accumulate, limit_train_batches=limit
    )
    datamodule.trainer = trainer
    return datamodule


# Digits


def test_digits_come_in_three_splits() -> None:
    digits = Digits()
    assert digits.describe() == {"train": 1293, "val": 144, "test": 360}  # 1797 - 360 = 1437, a tenth of them 144
    assert digits.spec.input_shape == (1, 8, 8)
    assert digits.spec.num_outputs == len(digits.spec.class_names or ()) == 10
    for split in (digits.splits.train, digits.splits.val, digits.splits.test):
        assert split.inputs.shape == (len(split), 1, 8, 8)
        assert split.inputs.dtype == torch.float32
        assert 0 == split.inputs.min() < split.inputs.max() == 1
        assert split.targets.shape == (len(split),)


@pytest.mark.parametrize("seed", [0, 1])
def test_test_digits_are_the_last_ones_whatever_the_seed(seed: int) -> None:
    bunch: Any = load_digits()
    test = Digits(seed=seed).splits.test
    assert numpy.array_equal(test.inputs.squeeze(1) * 16, bunch.images[-360:])
    assert numpy.array_equal(test.targets, bunch.target[-360:])


@pytest.mark.parametrize("seed", [0, 1])
def test_training_and_validation_digits_share_out_all_others(seed: int) -> None:
    bunch: Any = load_digits()
    splits = Digits(seed=seed).splits
    assert splits.val is not None
    both = torch.cat([splits.train.inputs, splits.val.inputs]).flatten(1) * 16
    assert sorted(both.tolist()) == sorted(bunch.data[:-360].tolist())


def test_validation_digits_are_drawn_with_the_seed() -> None:
    def validation(seed: int) -> Tensor:
        split = Digits(seed=seed).splits.val
        assert split is not None
        return split.inputs

    assert torch.equal(validation(3), validation(3))
    assert not torch.equal(validation(3), validation(4))


def test_no_validation_fraction_is_no_validation_split() -> None:
    digits = Digits(val_fraction=0.0)
    assert digits.splits.val is None
    assert digits.val_dataloader() == []
    assert digits.describe() == {"train": 1437, "val": 0, "test": 360}


@pytest.mark.parametrize(("length", "fraction", "held_out"), [(10, 0.1, 1), (10, 0.0, 0), (1437, 0.1, 144), (7, 0.9, 6)])
def test_a_seeded_split_is_disjoint_and_complete_and_in_order(length: int, fraction: float, held_out: int) -> None:
    rest, drawn = seeded_split(length, fraction, seed=5)
    assert len(drawn) == held_out
    assert rest.tolist() == sorted(rest.tolist())
    assert drawn.tolist() == sorted(drawn.tolist())
    assert sorted(rest.tolist() + drawn.tolist()) == list(range(length))


# Standardisation


def float_images() -> DataModule:
    return Digits(standardize=True)


def byte_images() -> DataModule:
    return images(standardize=True)


def vectors() -> DataModule:
    return regression(standardize=True, length=5000)  # more than one part of 4096


@pytest.mark.parametrize("make", [float_images, byte_images, vectors])
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


@pytest.mark.parametrize("make", [float_images, byte_images, vectors])
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
        regression(augment={"flip": True}).setup("fit")


# Loaders


def test_loaders_have_the_samplers_of_their_rank() -> None:
    datamodule = pretend(Digits(batch_size=8, drop_last=False, seed=3), global_rank=1, world_size=2, accumulate=4)
    train, val, test = datamodule.train_dataloader().sampler, datamodule.val_dataloader(), datamodule.test_dataloader().sampler
    assert isinstance(train, TrainSampler)
    assert (train.rank, train.num_replicas, train.batch_size, train.accumulate, train.seed) == (1, 2, 8, 4, 3)
    assert (train.shuffle, train.tail) == (True, 1293 % 64)
    assert not isinstance(val, list)
    for sampler, length in ((val.sampler, 144), (test, 360)):
        assert isinstance(sampler, EvalSampler)
        assert (sampler.length, sampler.rank, sampler.num_replicas, sampler.batch_size) == (length, 1, 2, 8)


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


@pytest.mark.parametrize(("world_size", "accumulate", "batch_size"), [(1, 1, 24), (2, 1, 12), (2, 3, 4)])
def test_global_batch_size_is_divided_over_ranks_and_accumulation(world_size: int, accumulate: int, batch_size: int) -> None:
    datamodule = pretend(Digits(global_batch_size=24), 0, world_size, accumulate)
    batch = next(iter(datamodule.train_dataloader()))
    assert batch.inputs.shape == (batch_size, 1, 8, 8)
    assert batch.loss_weight == world_size * accumulate / 24
    test = next(iter(datamodule.test_dataloader()))
    assert len(test.ids) == batch_size


def test_global_batch_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.global_batch_size=24: accepted is a multiple of 5$"):
        pretend(Digits(global_batch_size=24), 0, world_size=5).train_dataloader()


def test_only_training_images_are_augmented() -> None:
    datamodule = images(batch_size=100, augment={"crop": 2, "flip": True}, shuffle=False)
    train, test = next(iter(datamodule.train_dataloader())), next(iter(datamodule.test_dataloader()))
    assert not torch.equal(train.inputs, datamodule.splits.train.inputs[:100])
    assert torch.equal(test.inputs, datamodule.splits.test.inputs[test.ids])


def test_persistent_workers_are_only_asked_for_with_workers() -> None:
    assert images(persistent_workers=True).test_dataloader().persistent_workers is False
    assert images(persistent_workers=True, num_workers=1).test_dataloader().persistent_workers is True


# Data made up from the seed


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7)])
def test_synthetic_images_have_the_shape_and_number_asked_for(shape: tuple[int, int, int]) -> None:
    datamodule = images(shape)
    assert datamodule.spec.input_shape == shape
    assert datamodule.spec.num_outputs == 4
    assert datamodule.describe() == {"train": 500, "val": 100, "test": 200}
    for split in (datamodule.splits.train, datamodule.splits.val, datamodule.splits.test):
        assert split.inputs.shape[1:] == shape
        assert split.inputs.dtype == torch.uint8
        assert set(split.targets.tolist()) == {0, 1, 2, 3}


def test_synthetic_images_can_be_learned() -> None:
    """The nearest of the class means of the training images is the right class of every test image."""
    splits = images().splits
    means = torch.stack([splits.train.inputs[splits.train.targets == k].float().mean(dim=0) for k in range(4)]).flatten(1)
    predicted = torch.cdist(splits.test.inputs.float().flatten(1), means).argmin(dim=1)
    assert torch.equal(predicted, splits.test.targets)


@pytest.mark.parametrize("make", [images, regression])
def test_made_up_data_is_the_seed_s(make: Callable[..., DataModule]) -> None:
    first, again, other = (make(seed=seed).splits for seed in (1, 1, 2))
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(first, split).inputs, getattr(again, split).inputs)
        assert torch.equal(getattr(first, split).targets, getattr(again, split).targets)
        assert not torch.equal(getattr(first, split).inputs, getattr(other, split).inputs)
    assert not torch.equal(first.train.inputs[:100], first.val.inputs[:100])


def test_a_linear_fit_leaves_only_the_noise_of_a_teacher() -> None:
    # in the mean over 3000 test targets the squared noise has a relative deviation of sqrt(2 / 3000) = 2.6 %, and the
    # fit to 1000 samples of 10 features adds 1 %
    assert error_of_least_squares(regression(noise=0.1)) == pytest.approx(0.01, rel=0.1)
    assert error_of_least_squares(regression(noise=0.0)) < 1e-10


def test_without_a_teacher_targets_are_noise() -> None:
    assert error_of_least_squares(regression(teacher=False)) == pytest.approx(1, rel=0.1)


def error_of_least_squares(datamodule: DataModule) -> float:
    train, test = datamodule.splits.train, datamodule.splits.test
    fit = torch.linalg.lstsq(train.inputs.double(), train.targets.double()).solution
    return float((test.inputs.double() @ fit - test.targets).square().mean())


def test_regression_data_has_the_shape_asked_for() -> None:
    datamodule = regression()
    assert (datamodule.spec.input_shape, datamodule.spec.num_outputs) == ((10,), 3)
    assert datamodule.splits.train.inputs.shape == (1000, 10)
    assert datamodule.splits.train.targets.shape == (1000, 3)


# torchvision's sets


def test_mnist_is_read_and_split(mnist: Path) -> None:
    datamodule = TorchvisionImages("MNIST", str(mnist))
    datamodule.prepare_data()  # finds it there
    assert datamodule.describe() == {"train": 54_000, "val": 6_000, "test": 10_000}
    test, val = datamodule.splits.test, datamodule.splits.val
    assert isinstance(test, InMemory)
    assert test.inputs.shape == (10_000, 1, 28, 28)
    assert test.inputs.dtype == torch.uint8
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    assert val is not None
    both = torch.cat([datamodule.splits.train.targets, val.targets])
    # how many of each digit the official training set has
    assert torch.bincount(both).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def write_mnist(folder: Path, length: int = 20) -> Path:
    """A small data set in MNIST's files: magic number, sizes, then bytes."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        pixels = numpy.arange(length * 784, dtype=numpy.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, length, 28, 28) + pixels)
        labels = bytes(i % 10 for i in range(length))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, length) + labels)
    return raw


def test_mnist_files_of_one_s_own_are_read(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    mnist = TorchvisionImages("MNIST", str(tmp_path), val_fraction=0.25)
    mnist.prepare_data()
    assert mnist.describe() == {"train": 15, "val": 5, "test": 20}
    assert mnist.splits.test.targets.tolist() == [i % 10 for i in range(20)]
    assert mnist.splits.test.inputs.flatten()[:300].tolist() == [i % 256 for i in range(300)]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", download)


@pytest.mark.usefixtures("offline")
def test_mnist_that_is_missing_and_can_not_be_downloaded_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with pytest.raises(ConfigError) as refused:
        TorchvisionImages("MNIST", str(folder)).prepare_data()
    line = (
        f"datamodule.data_dir={folder}: MNIST is not in {folder} and could not be downloaded; put torchvision's files there, or "
    )
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
    assert not folder.exists()


@pytest.mark.usefixtures("offline")
def test_a_folder_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError):
        TorchvisionImages("MNIST", str(tmp_path)).prepare_data()
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.usefixtures("offline")
def test_a_failed_download_leaves_no_parent_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        TorchvisionImages("MNIST", str(tmp_path / "sets" / "data")).prepare_data()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("train-images-idx3-ubyte", 0),
        ("train-images-idx3-ubyte", 10),
        ("t10k-labels-idx1-ubyte", 0),
        ("t10k-labels-idx1-ubyte", 3),
    ],
)
def test_an_mnist_file_without_its_header_is_refused(file: str, kept: int, tmp_path: Path) -> None:
    path = write_mnist(tmp_path) / file
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError) as refused:
        TorchvisionImages("MNIST", str(tmp_path)).prepare_data()
    assert str(refused.value).startswith(f"datamodule.data_dir={tmp_path}: a file of MNIST there is unreadable (")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("method", ["prepare_data", "load"])
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_a_truncated_mnist_file_is_refused_as_unreadable(file: str, method: str, tmp_path: Path) -> None:
    path = write_mnist(tmp_path) / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError) as refused:
        getattr(TorchvisionImages("MNIST", str(tmp_path)), method)()
    assert str(refused.value).startswith(f"datamodule.data_dir={tmp_path}: a file of MNIST there is unreadable (")


@pytest.mark.usefixtures("offline")
def test_a_truncated_mnist_file_is_refused_naming_data_dir(tmp_path: Path) -> None:
    path = write_mnist(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"^datamodule.data_dir={tmp_path}: "):
        TorchvisionImages("MNIST", str(tmp_path)).prepare_data()
    assert path.exists()  # the user's file


def test_a_data_set_torchvision_images_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.dataset=ImageNet: accepted is MNIST, FashionMNIST, KMNIST, CIFAR10$"):
        TorchvisionImages("ImageNet", "data")
