"""A stream whose loader says where it is: a run goes on within its epoch."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import last
from plain_lightning import DigitsData
from sklearn.datasets import load_digits
from test_plain_lightning import GOES_ON, fitted
from torch.utils.data import DataLoader, IterableDataset


class Counting(DataLoader[Any]):
    """A loader that says where it is, as torchdata's StatefulDataLoader does, and goes on from where an iteration has left it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loaded, self.loads = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]

    def __iter__(self) -> Any:
        for batch in islice(super().__iter__(), self.loaded, None):
            self.loads += 1
            self.loaded += 1
            yield batch
        self.loaded = 0


class Images(IterableDataset[Any]):
    def __iter__(self) -> Any:
        images, labels = load_digits(return_X_y=True)
        yield from ((torch.tensor(images[i] / 16, dtype=torch.float32), int(labels[i])) for i in range(700))


class StreamedDigits(DigitsData):
    def train_dataloader(self) -> DataLoader[Any]:
        self.loader = Counting(Images(), self.hparams["batch_size"])
        return self.loader


def test_a_loader_that_says_where_it_is_goes_on_from_there(tmp_path: Path) -> None:
    data = ("datamodule._target_=test_stateful_loaders.StreamedDigits", "guards.checkpoint.every_n_steps=1")
    fitted(tmp_path / "whole", *data, keep=tmp_path)  # seven batches an epoch
    trainer = fitted(tmp_path / "run", *data, ckpt_path=tmp_path / "11.ckpt")
    own, other = last(tmp_path / "run"), last(tmp_path / "whole")
    assert own["global_step"] == other["global_step"] == 14
    assert all(torch.equal(own["state_dict"][name], tensor) for name, tensor in other["state_dict"].items())
    assert trainer.datamodule.loader.loads < 7  # and one that was loaded before the position was known


class Played(IterableDataset[Any]):
    """Is made while it is read, as on-policy experience is."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __iter__(self) -> Any:
        self.seen = [*self.seen, *((torch.randn(64), place % 10) for place in range(64))]
        for x, y in self.seen:
            yield x + torch.randn(64), y
        self.seen = []


class PlayedData(DigitsData):
    played = Played

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.played(), 8, num_workers=self.hparams["num_workers"])


class Forgets(Played):
    """What was not read to its end."""

    def __iter__(self) -> Any:
        self.seen = []
        yield from super().__iter__()


class ForgottenData(PlayedData):
    played = Forgets


@pytest.mark.filterwarnings(GOES_ON)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_begun_once_in_each_epoch_and_again_for_a_resumption_alone(workers: int, tmp_path: Path) -> None:
    """64 samples of two epochs were 24 steps of 8: what was begun before the first epoch was thrown away."""
    data = ("model._target_=test_plain_lightning.AtOneRate", "+model.dropout=0", f"+datamodule.num_workers={workers}")
    assert fitted(tmp_path / "once", *data, "datamodule._target_=test_stateful_loaders.PlayedData").global_step == 16
    data += ("datamodule._target_=test_stateful_loaders.ForgottenData",)
    whole = fitted(tmp_path / "whole", *data, keep=tmp_path)
    for batches in (3, 11):
        resumed = fitted(tmp_path / f"from{batches}", *data, ckpt_path=tmp_path / f"{batches}.ckpt")
        assert resumed.global_step == whole.global_step == 16
        assert all(map(torch.equal, whole.lightning_module.parameters(), resumed.lightning_module.parameters()))
