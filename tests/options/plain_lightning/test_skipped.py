"""Batches that one of two processes leaves out, or all of them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from ranks import in_ranks
from test_accumulation import Mean
from test_plain_lightning import fitted
from torch import nn

from lockstep.plain_lightning.callback import PlainLightning
from lockstep.runs.results import collect_facts


class Skips(Mean):
    """Batch k of two processes has the numbers from 4 k to 4 k + 3, of which the first has the even ones; the last has two."""

    skipped = ((1, 1), (2, 0), (2, 1), (5, 0))  # batches and ranks

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(()))
        self.factors: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (batch_idx, self.global_rank) in self.skipped:
            return None
        return super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(None if self.factor.grad is None else round(float(self.factor.grad), 4))

    def on_train_batch_end(self, *_: Any) -> None:
        self.factors.append(self.factor.item())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class SkipsSecond(Mean):
    """Both processes leave out the second batch of each step of two."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class Leaves(Mean):
    """Its second process leaves out the rest of the first of two epochs. Its rate depends on the number of processes."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if (self.global_rank, self.trainer.current_epoch, batch_idx) == (1, 0, 3) else None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01 * self.trainer.num_devices)


def fitted_with(folder: Path, kind: str, *overrides: str) -> Any:
    own = ("~model.hidden", "~model.lr", "optimized_metric=null", f"model._target_=test_skipped.{kind}", "trainer.devices=2")
    own += ("datamodule._target_=test_accumulation.Data", "+datamodule.kind=data", "datamodule.batch_size=2")
    return fitted(folder / kind, *own, *overrides)


def skip(rank: int, world_size: int, folder: Path) -> list[Any]:
    become_rank(rank, world_size)
    trainer = fitted_with(folder, "Skips", "trainer.max_epochs=1", "trainer.strategy.find_unused_parameters=true")
    model = trainer.lightning_module
    seen = [(model.gradients, model.factors[1] == model.factors[2], model.unused.item())]
    accumulated = fitted_with(folder, "SkipsSecond", "trainer.max_epochs=1", "trainer.accumulate_grad_batches=2")
    seen.append(accumulated.lightning_module.gradients)
    return [*seen, (trainer.global_step, collect_facts(trainer)["samples_trained"])]


@pytest.mark.slow
def test_a_step_is_of_the_samples_that_some_process_does_not_skip(tmp_path: Path) -> None:
    """One that returned None left the others waiting, or ended the run."""
    first, second = in_ranks(2, partial(skip, folder=tmp_path), tmp_path)
    # gradients of a step whose second batch is skipped are halves of the means of 0, ..., 3, of 8, ..., 11 and of 16, ..., 19
    accumulated = [0.75, 4.75, 11.6667]  # the last of six samples
    expected = [([1.5, 5.0, None, 13.5, 17.5, 21.0], True, 1.0), accumulated, (6, 22 - 2 - 4 - 1)]
    assert first == second == expected


def leave(rank: int, world_size: int, folder: Path) -> tuple[int, list[str]]:
    become_rank(rank, world_size)
    trainer = fitted_with(folder, "Leaves")
    causes = next(one.causes for one in trainer.callbacks if isinstance(one, PlainLightning))
    return trainer.global_step, causes


@pytest.mark.slow
def test_a_process_that_leaves_out_the_rest_of_an_epoch_does_so_with_all(tmp_path: Path) -> None:
    lines = [
        "Leaves reads num_devices: a rate that depends on it is another one than on one process",
        "on_train_batch_start returns -1 in 1 of 2 processes alone, and all follow",
    ]
    assert in_ranks(2, partial(leave, folder=tmp_path), tmp_path) == [(3 + 6, lines)] * 2
