"""Numpy's and Python's generators are left alone where nothing in a step draws from them, and are seeded at each batch else."""

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
from in_process import prepared
from lightning import Callback
from torch import Tensor, nn

from lockstep.callbacks import CounterBasedRandomness
from lockstep.extras.monitor import Monitor

KEYS = ("guards.randomness.seed=7", "trainer.max_steps=2", "trainer.limit_val_batches=1")


class Foreign(nn.Identity):
    """Of a package that may draw what it wants."""


class Looks(Monitor, Callback):
    """Notes what the generators of numpy and Python are about to draw in each step."""

    def __init__(self) -> None:
        self.states: list[tuple[bytes, object]] = []

    def on_before_zero_grad(self, *_: Any) -> None:
        self.states.append((numpy.random.get_state()[1].tobytes(), random.getstate()))  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue, reportCallIssue]


def draws(tmp_path: Path, *options: str, other: Any = None) -> Looks:
    """`other`: a layer, or a callback."""
    datamodule, model, trainer = prepared(tmp_path, *KEYS, *options)
    looks = Looks()
    if isinstance(other, nn.Module):
        model.net = nn.Sequential(model.net, other)
    trainer.callbacks += [looks, *([other] if isinstance(other, Callback) else [])]
    trainer.fit(model, datamodule)
    assert sum(isinstance(callback, CounterBasedRandomness) for callback in trainer.callbacks) == 1
    assert len(looks.states) == 2
    return looks


def augment(inputs: Tensor, *_: Any) -> Tensor:
    return inputs


@pytest.mark.parametrize(
    ("options", "other", "are_seeded"),
    [((), None, False), ((), Foreign(), True), ((), type("Own", (Callback,), {})(), True)],
)
def test_generators_are_seeded_where_code_of_others_could_draw(
    options: tuple[str, ...], other: Any, are_seeded: bool, tmp_path: Path
) -> None:
    (first_numpy, first_python), (second_numpy, second_python) = draws(tmp_path, *options, other=other).states
    assert (first_numpy != second_numpy, first_python != second_python) == (are_seeded, are_seeded)
