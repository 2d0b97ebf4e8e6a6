"""Metrics whose states are lists, of which processes have unequal numbers of entries."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from plain_lightning import DigitsData, LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchmetrics import Metric
from torchmetrics.retrieval import RetrievalMRR


class Places(Metric):
    """Sums entries times their places in a list that has one of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Tensor]
        self.add_state("entries", default=[], dist_reduce_fx=None)

    def update(self, entries: Tensor) -> None:
        self.entries.extend(entries.float())

    def compute(self) -> Tensor:
        return sum((place * entry for place, entry in enumerate(self.entries)), torch.zeros(()))


class Ranks(LitClassifier):
    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.mrr, self.places = RetrievalMRR(), Places()

    def configure_model(self) -> None:
        self.of_few = Places()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        labels = batch[1]
        for number in labels:
            self.mrr.update(torch.tensor([0.3, 0.6]), torch.tensor([True, False]), indexes=number.repeat(2))
        self.places.update(labels)
        self.of_few.update(labels[labels > 8])
        self.log("val_acc", self.mrr)
        self.log("places", self.places)

    def on_validation_epoch_end(self) -> None:
        self.log("of_few", self.of_few.compute())
        self.of_few.reset()


class Few(DigitsData):
    def val_dataloader(self) -> Any:
        return DataLoader(Subset(self.val, range(25)), self.hparams["batch_size"])


def validated(folder: Path, *overrides: str) -> list[float]:
    own = ("model._target_=test_list_states.Ranks", "datamodule._target_=test_list_states.Few", "trainer.max_epochs=1")
    trainer = fitted(folder, *own, "trainer.limit_train_batches=1", *overrides)
    return [float(trainer.callback_metrics[name]) for name in ("val_acc", "places", "of_few")]


def of_rank(rank: int, world_size: int, folder: Path) -> list[float]:
    become_rank(rank, world_size)
    return validated(folder / "two", f"trainer.devices={world_size}", "datamodule.batch_size=4")


@pytest.mark.slow
def test_lists_of_unequal_length_are_gathered_whole(tmp_path: Path) -> None:
    """Of 25 samples a process has 13, and the other 12; they waited for each other."""
    (tmp_path / "two").mkdir()
    one = validated(tmp_path / "one", "datamodule.batch_size=8")
    assert one[0] == pytest.approx(0.3138889)
    assert in_ranks(2, partial(of_rank, folder=tmp_path), tmp_path) == [one] * 2
