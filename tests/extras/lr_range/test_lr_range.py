"""The learning rate range test: its rates, its samples, its end, and what it suggests."""

import csv
import json
import math
import sys
from pathlib import Path

import lr_range
import numpy
import pytest
from in_process import plain
from lightning import LightningModule, Trainer
from ranged import measured

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.lr_range.lr_range import LearningRateRange, smoothed, suggested
from lockstep.runs.composition import compose

RATES = numpy.geomspace(1e-6, 1.0, 121).tolist()


def falling(at: float, diverging: float = math.inf) -> list[float]:
    """A loss that falls from 2.3 to 0.3, fastest at a rate, and rises from another one on."""
    return [2.3 - 2 / (1 + (at / rate) ** 2) + max(0.0, rate / diverging - 1) for rate in RATES]


def test_suggested_is_where_the_loss_falls_fastest() -> None:
    for at in (1e-4, 1e-2):
        rate, reason = suggested(RATES, falling(at, diverging=at * 30), diverged_at=at * 200)
        assert rate == pytest.approx(at, rel=0.15)  # the next rate is 1.12 times as large
        assert reason.startswith("there the loss falls fastest, of the rates from 1e-06 to 1; it is lowest at ")
        assert reason.endswith(f" and diverges at {at * 200:.2g}")


@pytest.mark.parametrize("losses", [[1.0 + i for i in range(121)], []])
def test_a_loss_that_falls_nowhere_gives_no_rate(losses: list[float]) -> None:
    rate, reason = suggested(RATES[: len(losses)], losses, diverged_at=1e-6)
    assert rate is None
    assert reason.startswith("the loss falls nowhere ")


def test_losses_are_smoothed_without_a_shift() -> None:
    assert smoothed([0.0, 3.0, 6.0, 9.0, 12.0], 3) == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert smoothed([0.0, 3.0, 0.0, 3.0, 0.0], 3) == [0.0, 1.0, 2.0, 1.0, 0.0]
    assert smoothed([], 3) == []


def test_the_rate_rises_exponentially_whatever_the_schedule(tmp_path: Path) -> None:
    options = ("model/lr_scheduler=one_cycle", "lr_range.from=1e-5", "lr_range.to=1e-2", "lr_range.steps=31")
    result, steps = measured(tmp_path, *options, "datamodule.batch_size=60", "trainer.accumulate_grad_batches=2")
    expected = numpy.geomspace(1e-5, 1e-2, 31)
    assert result["rates"] == pytest.approx(expected)
    assert [rate for (rate,) in steps.rates] == pytest.approx(numpy.repeat(expected, 2))
    assert result["diverged_at"] is None
    assert len(result["losses"]) == 31


def test_it_takes_a_run_s_samples_and_stops_where_it_diverges(tmp_path: Path) -> None:
    options = ("model/optimizer=sgd", "lr_range.from=1e-3", "lr_range.to=1e5", "lr_range.steps=60", "datamodule.batch_size=100")
    result, steps = measured(tmp_path, *options)
    datamodule, *_ = build(cfg := compose(*plain(*options[-1:]), "trainer.accelerator=cpu"), Plan.from_config(cfg))
    expected = []
    for epoch in range(5):
        loader = datamodule.train_dataloader()
        loader.sampler.set_epoch(epoch)
        expected += [batch.ids.tolist() for batch in loader]
    assert 20 < len(steps.ids) < 60
    assert steps.ids == expected[: len(steps.ids)]
    assert 1 < result["diverged_at"] < 1e5
    assert 1e-3 < result["suggestion"] < result["diverged_at"]
    assert len(result["rates"]) == len(result["losses"])
    assert all(map(math.isfinite, result["losses"]))
    json.dumps(result, allow_nan=False)
    left = {path.name for path in tmp_path.iterdir()} - {"code.patch"}  # in a checkout of git alone
    assert left == {"csv", "lr_range.png"}  # no checkpoint, of any kind
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        logged = [float(row["lr_range/loss"]) for row in csv.DictReader(file) if row["lr_range/loss"]]
    assert logged[: len(result["losses"])] == pytest.approx(result["losses"])


def test_a_range_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lr_range.py", "lr_range.to=1e-7"])
    with pytest.raises(ConfigError, match=r"^lr_range.to=1e-07: is not above lr_range.from=1e-06 and 0$"):
        lr_range.main()


def test_a_model_that_optimizes_by_hand_is_refused() -> None:
    by_hand = LightningModule()
    by_hand.automatic_optimization = False
    with pytest.raises(ConfigError, match=r"^model=LightningModule: optimizes by hand; use a model"):
        LearningRateRange(1e-6, 1.0, 200, 4.0, "unused").on_train_start(Trainer(logger=False, accelerator="cpu"), by_hand)


def test_what_is_for_sweeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lr_range.py", "sweep=lr"])
    with pytest.raises(ConfigError, match=r"^sweep=lr: is for sweeps; use -m$"):
        lr_range.main()
