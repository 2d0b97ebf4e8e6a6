"""A decision of one process is reported, or all processes follow it."""

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
from torch.utils.data import Subset

from lockstep.plain_lightning.callback import PlainLightning

pytestmark = pytest.mark.slow


class SomeDigits(DigitsData):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train = Subset(self.train, range(495))  # the last batch of 100 has 95


class RateOfDevices(LitClassifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5 * self.trainer.num_devices)


class StopsAlone(RateOfDevices):
    """Its second process stops training, in its second epoch of five batches."""

    where = "training_step"

    def _stop(self, hook: str) -> None:
        if hook == self.where and self.trainer.current_epoch == 1 and self.global_rank == self.trainer.world_size - 1:
            self.trainer.should_stop = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._stop(f"training_step{batch_idx or ''}")
        return super().training_step(batch, batch_idx)

    def on_validation_end(self) -> None:
        self._stop("on_validation_end")


def stopped(folder: Path, where: str, *overrides: str) -> tuple[int, list[str]]:
    """The steps that were taken, and what was said of them."""
    StopsAlone.where = where
    kind = ("model._target_=test_deciding.StopsAlone", "datamodule._target_=test_deciding.SomeDigits")
    trainer = fitted(folder, *kind, "trainer.max_epochs=3", *overrides)
    causes = next(one.causes for one in trainer.callbacks if isinstance(one, PlainLightning))
    return trainer.global_step, [cause for cause in causes if "should_stop" in cause or "a rate" in cause]


def stop_ranks(rank: int, world_size: int, folder: Path, hooks: list[str]) -> list[tuple[int, list[str]]]:
    become_rank(rank, world_size)
    return [stopped(folder / hook, hook, f"trainer.devices={world_size}", "datamodule.batch_size=50") for hook in hooks]


def test_a_process_that_stops_alone_stops_all_and_is_named(tmp_path: Path) -> None:
    """The others waited for it until they were ended."""
    hooks = {"training_step2": 8, "on_validation_end": 10}
    first, second = in_ranks(2, partial(stop_ranks, folder=tmp_path, hooks=[*hooks]), tmp_path)
    sizes = "StopsAlone reads num_devices and world_size"  # in a base class, in itself
    lines = [
        f"{sizes}: a rate that depends on it is another one than on one process",
        "trainer.should_stop is set in 1 of 2 processes alone, and all follow",
    ]
    assert first == second == [(steps, lines) for steps in hooks.values()]
    assert stopped(tmp_path / "one", "training_step2", "datamodule.batch_size=100") == (8, [])
