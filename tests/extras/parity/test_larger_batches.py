"""The batches of several processes, taken by one: the loaders of a module or a datamodule alone know their size."""

from typing import Any

import pytest
from lightning import LightningDataModule
from planted_data import OwnLoader
from torch.utils.data import DataLoader, IterableDataset

from lockstep.errors import ConfigError
from lockstep.extras.parity.larger_batches import take_larger_batches


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(7))


class Data(LightningDataModule):
    def __init__(self, *loaders: Any) -> None:
        super().__init__()
        self.loaders = loaders

    def train_dataloader(self) -> Any:
        return list(self.loaders)


def test_loaders_of_torch_take_so_many_batches_as_one_in_their_own_order() -> None:
    data = Data(DataLoader(range(7), 2, drop_last=True), DataLoader(Stream(), 1))  # pyright: ignore[reportArgumentType]
    take_larger_batches(data, 3)
    mapped, stream = ([batch.tolist() for batch in loader] for loader in data.train_dataloader())
    assert mapped == [[0, 1, 2, 3, 4, 5]]
    assert stream == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_loader_that_draws_batches_in_its_own_way_is_refused() -> None:
    data = Data(OwnLoader(range(7), 2))  # pyright: ignore[reportArgumentType]
    take_larger_batches(data, 2)
    with pytest.raises(ConfigError, match=r"parity.against=one: train_dataloader draws .* those of 2; accepted is ddp"):
        data.train_dataloader()
