"""Points of the learning rate and of the throughput, of short runs too."""

import csv
from pathlib import Path

import pytest
from in_process import Rates, trained

from lockstep.runs.results import collect_facts


@pytest.mark.parametrize(
    ("limit", "steps"), [("trainer.max_epochs=3", [0, 3, 4, 7, 9, 11]), ("trainer.max_steps=6", [0, 3, 4, 5])]
)
def test_points_are_at_the_first_step_each_interval_and_each_end(limit: str, steps: list[int], tmp_path: Path) -> None:
    trained(tmp_path, limit, "trainer.log_every_n_steps=5")  # of four steps an epoch
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("lr", "throughput/samples_per_second", "throughput/step_time"):
        assert [int(row["step"]) for row in rows if row[name]] == steps


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_the_rate_that_is_logged_and_recorded_is_that_of_the_steps(schedule: str, tmp_path: Path) -> None:
    options = {
        "plateau": ["model.lr_scheduler.patience=0", "optimized_mode=min"],  # the accuracy rises
        "cosine": ["model.lr_scheduler.warmup_steps=3", "trainer.accumulate_grad_batches=2"],
    }
    rates = Rates()
    _, trainer = trained(tmp_path, f"model/lr_scheduler={schedule}", *options[schedule], extra=[rates])
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        logged = {int(row["step"]): float(row["lr"]) for row in csv.DictReader(file) if row["lr"]}
    assert logged == dict(enumerate(rates.seen))
    assert len(rates.seen) == trainer.global_step
    assert len(set(rates.seen)) > 1
    assert collect_facts(trainer)["lr"] == max(rates.seen)
