"""Values of steps that processes log with sync_dist=True, in another order or under other keys."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import become_rank
from lightning import Callback
from plain_lightning import DigitsData, LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import Tensor, nn
from torch.utils.data import Subset
from torchmetrics import SumMetric


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
        self.metrics = nn.ModuleDict({name: SumMetric() for name in ("first", "second", "third")})

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
            if self.global_rank or name != "third":
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
    own = ("model._target_=test_step_values.Logs", "datamodule._target_=test_step_values.Five", "datamodule.batch_size=2")
    own += ("+callbacks.sees._target_=test_step_values.Sees", "trainer.max_epochs=2", f"trainer.devices={world_size}")
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
    of_epoch = {"first": 0, "second": 4, "third": 8}  # of two batches of two ranks
    of_epoch |= {"late": 1, "all_epoch": 6, "some_step": 3, "some_epoch": 3, "val_some_epoch": 4}
    assert first == second == (of_steps * 2, of_epoch)
