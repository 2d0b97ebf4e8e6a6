"""Random transforms: the same on any number of processes and data workers, and after a resumption."""

import pickle
import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from lockstep.datamodules.batches import Batches
from lockstep.datamodules.seeded import Draws, EpochOrder, GlobalBatches, Seeded
from lockstep.plain_lightning.loaders import shared_loader


class Noisy(Dataset[Any]):
    """Draws from all three generators, one of them twice where the sample is odd."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        extra = torch.rand(()).item() if index % 2 else 0.0
        drawn = [index, torch.rand(()).item() + extra, numpy.random.rand(), random.random()]
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor(index)


def loaded(loader: DataLoader[Any], ranks: int, epoch: int, training: bool = True) -> dict[int, list[list[float]]]:
    """Return each loaded sample by its number."""
    samples: dict[int, list[list[float]]] = {}
    for rank in range(ranks):
        shared: Any = shared_loader(loader, (rank, ranks), 3, training)
        shared.sampler.set_epoch(max(epoch - 1, 0))
        list(shared)  # workers that persist have loaded another epoch
        shared.sampler.set_epoch(epoch)
        for batch, _ in shared:
            for row in batch.tolist():
                samples.setdefault(int(row[0]), []).append(row)
    return samples


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("data", [Noisy(), Subset(ConcatDataset([Noisy()]), range(22))], ids=["dataset", "subset"])
def test_a_sample_is_loaded_alike_on_any_number_of_processes_and_workers(data: Any, training: bool) -> None:
    alone = loaded(DataLoader(data, 4, shuffle=training, drop_last=training), 1, epoch=1, training=training)
    assert len(alone) == (20 if training else 22)
    torch.rand(5)  # what was drawn before does not matter
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    assert loaded(DataLoader(data, 2, shuffle=training, drop_last=training, **workers), 2, 1, training) == alone
    later = loaded(DataLoader(data, 4, shuffle=training, drop_last=training), 1, epoch=2, training=training)
    assert (later == alone) != training  # an evaluation is the same in each epoch


def test_shipped_data_is_loaded_alike_too() -> None:
    def rows(ranks: int, workers: int, training: bool) -> dict[int, list[list[float]]]:
        batches = GlobalBatches(EpochOrder(22, 20 if training else 22, 3), 4, drop_last=False)
        return loaded(DataLoader(Batches(Noisy(), 3), None, sampler=batches, num_workers=workers), ranks, 1, training)

    for training in (True, False):
        assert rows(1, 0, training) == rows(2, 2, training)


def test_a_sample_that_is_drawn_twice_is_loaded_with_other_numbers() -> None:
    sampler = WeightedRandomSampler([1.0] + [0.0] * 21, 4)
    rows = loaded(DataLoader(Noisy(), 2, sampler=sampler), 1, epoch=0)[0]
    assert len({tuple(row) for row in rows}) == len(rows) == 4


def test_the_generators_of_the_process_go_on_where_they_were() -> None:
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[2]
    Seeded(Noisy(), 0)[Draws([3])]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), numpy.random.get_state()[2])


def test_a_dataset_answers_for_itself() -> None:
    """A worker's init function opens the file of `get_worker_info().dataset`, which is this one."""
    data = Noisy()
    seeded: Any = Seeded(data, 0)
    seeded.file = "opened"
    assert data.file == seeded.file == "opened"  # pyright: ignore[reportAttributeAccessIssue]
    assert int(seeded[5][1]) == 5
    copy: Any = pickle.loads(pickle.dumps(seeded))
    assert (copy.file, len(copy)) == ("opened", 22)
    with pytest.raises(AttributeError, match="missing"):
        _ = seeded.missing


def test_a_batch_that_is_fetched_at_once_is_seeded_from_its_first_sample() -> None:
    class AtOnce(Noisy):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self[index] for index in ids]

    seeded = Seeded(AtOnce(), 0)
    first, again = (seeded[Draws([4, 7], 0, [4, 7])] for _ in range(2))
    assert torch.equal(first[1][0], again[1][0])
    plain = Seeded(TensorDataset(torch.arange(5)), 0)
    assert [int(one[0]) for one in plain[Draws([4, 1])]] == [4, 1]
