"""From draws to batches, for every kind of dataset."""

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lockstep.datamodules.augment import CropFlip
from lockstep.datamodules.batches import Batch, Batches, InMemory
from lockstep.datamodules.samplers import BatchIndices, TrainSampler
from lockstep.errors import ConfigError

LENGTH = 20
INPUTS = torch.arange(LENGTH * 1 * 4 * 4).to(torch.uint8).view(LENGTH, 1, 4, 4)
TARGETS = torch.arange(LENGTH) % 3


class OneByOne(Dataset[tuple[Tensor, int]]):
    """The plainest dataset: single samples, Python numbers as targets."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return INPUTS[index], int(TARGETS[index])


class CountedFetches(OneByOne):
    """Fetches all at once, as a list of samples; says how often."""

    def __init__(self) -> None:
        self.fetches = 0

    def __getitems__(self, ids: Sequence[int]) -> list[tuple[Tensor, int]]:
        self.fetches += 1
        return [self[i] for i in ids]


DATASETS = {
    "in memory": InMemory(INPUTS, TARGETS),
    "arrays in memory": InMemory(INPUTS.numpy(), TARGETS.numpy()),
    "single samples": OneByOne(),
    "torch's TensorDataset": TensorDataset(INPUTS, TARGETS),
    "lists": CountedFetches(),
    "Subset of single samples": Subset(OneByOne(), range(LENGTH)),
    "Subset of tuples": Subset(InMemory(INPUTS, TARGETS), range(LENGTH)),
}


def every_dataset() -> Any:
    return pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS.keys())


@every_dataset()
def test_a_draw_becomes_a_batch(dataset: Any) -> None:
    ids = torch.tensor([3, 0, 19])
    batch = Batches(dataset)[BatchIndices(ids, epoch=5, loss_weight=0.25)]
    assert isinstance(batch, Batch)
    assert torch.equal(batch.inputs, INPUTS[ids])
    assert torch.equal(batch.targets, TARGETS[ids])
    assert batch.ids is ids
    assert batch.loss_weight == 0.25


@every_dataset()
def test_an_empty_draw_becomes_an_empty_batch_of_the_right_shape_and_type(dataset: Any) -> None:
    batch = Batches(dataset, CropFlip(crop=1, flip=True))[
        BatchIndices(torch.empty(0, dtype=torch.int64), epoch=0, loss_weight=2.0)
    ]
    assert batch.inputs.shape == (0, 1, 4, 4)
    assert batch.inputs.dtype == torch.uint8
    assert batch.targets.shape == (0,)
    assert batch.targets.dtype == torch.int64
    assert batch.ids.shape == (0,)
    assert batch.loss_weight == 2.0


@every_dataset()
def test_length_is_the_dataset_s(dataset: Any) -> None:
    assert len(Batches(dataset)) == LENGTH


@pytest.mark.parametrize(
    ("samples", "kinds"),
    [
        ([({"tokens": INPUTS[0]}, 1)], "dict, Tensor"),
        ([(INPUTS[0], 1, 0)], "Tensor, Tensor, Tensor"),
        ([{"x": INPUTS[0], "y": 1}], "dict"),
        ([INPUTS[0]], "Tensor"),
    ],
)
def test_samples_that_are_no_pairs_of_tensors_are_refused(samples: Any, kinds: str) -> None:
    with pytest.raises(ConfigError, match=f"^datamodule: its samples make a batch of {kinds}; accepted by"):
        Batches(samples)[BatchIndices(torch.tensor([0]), 0, 1.0)]


def test_targets_may_be_vectors() -> None:
    targets = torch.randn(LENGTH, 2, generator=torch.Generator().manual_seed(0))
    batches = Batches(InMemory(INPUTS, targets))
    assert torch.equal(batches[BatchIndices(torch.tensor([1, 2]), 0, 1.0)].targets, targets[1:3])
    assert batches[BatchIndices(torch.empty(0, dtype=torch.int64), 0, 1.0)].targets.shape == (0, 2)


def test_a_subset_numbers_its_own_samples() -> None:
    batch = Batches(Subset(InMemory(INPUTS, TARGETS), [7, 5]))[BatchIndices(torch.tensor([1]), 0, 1.0)]
    assert torch.equal(batch.inputs, INPUTS[[5]])
    assert batch.ids.tolist() == [1]


def test_a_batch_is_fetched_at_once_where_the_dataset_can() -> None:
    dataset = CountedFetches()
    assert len(Batches(dataset)[BatchIndices(torch.arange(10), 0, 1.0)].inputs) == 10
    assert dataset.fetches == 1


def test_augmentation_is_given_the_ids_and_the_epoch() -> None:
    ids, augment = torch.tensor([4, 9]), CropFlip(crop=1, flip=True, seed=3)
    batch = Batches(InMemory(INPUTS, TARGETS), augment)[BatchIndices(ids, epoch=6, loss_weight=1.0)]
    assert torch.equal(batch.inputs, augment(INPUTS[ids], ids, 6))
    assert not torch.equal(batch.inputs, INPUTS[ids])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(3, 4), (), (300, 1000)], ids=["small", "numbers", "large"])
def test_a_batch_in_memory_has_the_bits_of_its_samples(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    data = torch.randint(0, 2, (20, *shape)).to(dtype)
    for kept in (data, data[::2]):  # whose samples do not lie side by side
        for ids in ([3, 0, 9], [5], []):
            inputs, _ = InMemory(kept, torch.arange(20)).__getitems__(torch.tensor(ids, dtype=torch.int64))
            assert inputs.dtype == dtype
            assert torch.equal(inputs, torch.stack([kept[i] for i in ids]) if len(ids) else kept[:0])


@pytest.mark.parametrize(
    "change", [lambda data: data.to(torch.float8_e5m2), lambda data: data.requires_grad_()], ids=["float8", "grad"]
)
def test_data_of_which_numpy_knows_nothing_gives_batches(change: Callable[[Tensor], Tensor]) -> None:
    data = change(torch.ones(20, 3))
    assert InMemory(data, TARGETS).__getitems__([4, 9])[0].float().tolist() == [[1.0] * 3] * 2


def test_a_small_batch_of_a_view_is_no_copy_of_all_data() -> None:
    """As of images that are kept with their channels last: numpy would copy these first, for each batch."""
    data = torch.zeros(2000, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    tracemalloc.start()  # which numpy's memory is known to
    InMemory(data, torch.arange(2000)).__getitems__([4, 9])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < data.nbytes / 2


def test_in_memory_gives_single_samples_too() -> None:
    dataset = InMemory(INPUTS, TARGETS)
    image, target = dataset[4]
    assert torch.equal(image, INPUTS[4])
    assert target == 1  # 4 % 3
    assert len(dataset) == LENGTH


def loaded(num_workers: int, dataset: Any) -> list[Batch]:
    sampler = TrainSampler(LENGTH, batch_size=4, rank=1, world_size=2, drop_last=False, seed=2)
    sampler.set_epoch(1)
    augment = CropFlip(crop=1, flip=True)
    return list(DataLoader(Batches(dataset, augment), batch_size=None, sampler=sampler, num_workers=num_workers))


@pytest.mark.parametrize("dataset", ["in memory", "Subset of single samples"])
def test_a_loader_yields_the_draws_in_order_with_and_without_workers(dataset: str) -> None:
    here, elsewhere = (loaded(num_workers, DATASETS[dataset]) for num_workers in (0, 2))
    # 20 samples at a global batch of 8 on 2 ranks: 4, 4 and half of the tail of 4, which weighs 2 / 4
    assert [(len(batch.ids), batch.loss_weight) for batch in here] == [(4, 0.25), (4, 0.25), (2, 0.5)]
    for own, other in zip(here, elsewhere, strict=True):
        assert torch.equal(own.inputs, other.inputs)
        assert torch.equal(own.targets, other.targets)
        assert torch.equal(own.ids, other.ids)
        assert torch.equal(own.targets, TARGETS[own.ids])
        assert own.loss_weight == other.loss_weight
