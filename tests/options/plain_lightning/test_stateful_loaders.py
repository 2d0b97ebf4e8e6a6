"""A stream whose loader says where it is: a run goes on within its epoch."""

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from in_process import last
from plain_lightning import DigitsData
from sklearn.datasets import load_digits
from test_plain_lightning import fitted
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
