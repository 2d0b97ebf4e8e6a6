"""Values and metrics that processes log in another order, under other keys, or with lists of unequal lengths."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from lightning import Callback
from plain_lightning import DigitsData, LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torchmetrics import Metric, SumMetric
from torchmetrics.retrieval import RetrievalMRR

from lockstep.errors import NamedFailure


class Five(DigitsData):
    """Two batches of two processes: of four samples, and of one, of which the second process has a dummy."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train, self.val = Subset(self.train, range(5)), Subset(self.val, range(8))


class Logs(LitClassifier):
    """Each rank in an order of its own; the second alone logs `some` in a step and in its validation."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.net = nn.Linear(64, 10)
        self.metrics = nn.ModuleDict({name: SumMetric() for name in ("first", "second")})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        values = {"one": 1.0, "ten": 10.0, "rank": float(self.global_rank)}
        for name in sorted(values, reverse=self.global_rank > 0):
            self.log(name, values[name], sync_dist=True)
        self.log("all", 2.0, sync_dist=True, on_step=True, on_epoch=True, reduce_fx="sum")
        if self.global_rank and batch_idx == 0:
            self.log("some", 3.0, sync_dist=True, on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_rank == 1 - batch_idx:
            self.log("late", float(batch_idx), sync_dist=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        if self.global_rank:
            self.log("val_some", 4.0, sync_dist=True, on_step=True, on_epoch=True)
        for place, name in sorted(enumerate(self.metrics), reverse=self.global_rank > 0):
            metric: Any = self.metrics[name]
            metric.update(place)
            self.log(name, metric)


class Sees(Callback):
    """Keeps what a callback sees, and a logger gets, of each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []
        self.names = ("one", "ten", "rank", "all", "some")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.seen.append({name: float(trainer.callback_metrics[name]) for name in self.names})


def of_rank(rank: int, world_size: int, folder: Path) -> Any:
    become_rank(rank, world_size)
    own = ("model._target_=test_reduced_logs.Logs", "datamodule._target_=test_reduced_logs.Five", "datamodule.batch_size=2")
    own += ("+callbacks.sees._target_=test_reduced_logs.Sees", "trainer.max_epochs=2", f"trainer.devices={world_size}")
    trainer = fitted(folder / "two", *own)
    (sees,) = (callback for callback in trainer.callbacks if isinstance(callback, Sees))
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    of_epoch = {name: float(trainer.callback_metrics[name]) for name in trainer.lightning_module.metrics}
    of_epoch |= {name: logged[name] for name in ("late", "all_epoch", "some_step", "some_epoch", "val_some_epoch")}
    return sees.seen, of_epoch


@pytest.mark.slow
def test_values_of_a_step_are_exchanged_by_key(tmp_path: Path) -> None:
    """Two values were averaged as if they were one; a process that logged alone waited for the others."""
    (tmp_path / "two").mkdir()
    first, second = in_ranks(2, partial(of_rank, folder=tmp_path), tmp_path)
    of_steps = [{"one": 1, "ten": 10, "rank": 0.5, "all": 4, "some": 3}, {"one": 1, "ten": 10, "rank": 0, "all": 2, "some": 3}]
    of_epoch = {"first": 0, "second": 4}  # of two batches of two ranks
    of_epoch |= {"late": 1, "all_epoch": 6, "some_step": 3, "some_epoch": 3, "val_some_epoch": 4}
    assert first == second == (of_steps * 2, of_epoch)


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
    own = ("model._target_=test_reduced_logs.Ranks", "datamodule._target_=test_reduced_logs.Few", "trainer.max_epochs=1")
    trainer = fitted(folder, *own, "trainer.limit_train_batches=1", *overrides)
    return [float(trainer.callback_metrics[name]) for name in ("val_acc", "places", "of_few")]


def validated_rank(rank: int, world_size: int, folder: Path) -> list[float]:
    become_rank(rank, world_size)
    return validated(folder / "two", f"trainer.devices={world_size}", "datamodule.batch_size=4")


@pytest.mark.slow
def test_lists_of_unequal_length_are_gathered_whole(tmp_path: Path) -> None:
    """One process has 13 of 25 samples, the other 12; they waited for each other."""
    (tmp_path / "two").mkdir()
    one = validated(tmp_path / "one", "datamodule.batch_size=8")
    assert one[0] == pytest.approx(0.3138889)
    assert in_ranks(2, partial(validated_rank, folder=tmp_path), tmp_path) == [one] * 2


class LogsAlone(Ranks):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.places.update(batch[1])
        if self.global_rank:
            self.log("val_acc", self.places)


def refused_rank(rank: int, world_size: int, folder: Path) -> str:
    become_rank(rank, world_size)
    with pytest.raises(NamedFailure) as failure:
        fitted(folder / "two", "model._target_=test_reduced_logs.LogsAlone", f"trainer.devices={world_size}")
    return str(failure.value)


@pytest.mark.slow
def test_a_metric_that_one_process_logs_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    line = "validation_step.val_acc: only some processes log this torchmetrics.Metric; log it in all"
    assert in_ranks(2, partial(refused_rank, folder=tmp_path), tmp_path) == [line] * 2
