"""Points of the learning rate and of the throughput, of short runs too."""

import csv
from pathlib import Path

import pytest
from fits import trained


@pytest.mark.parametrize(
    ("limit", "steps"), [("trainer.max_epochs=3", [0, 3, 4, 7, 9, 11]), ("trainer.max_steps=6", [0, 3, 4, 5])]
)
def test_points_are_at_the_first_step_each_interval_and_each_end(limit: str, steps: list[int], tmp_path: Path) -> None:
    trained(tmp_path, limit, "trainer.log_every_n_steps=5")  # of four steps an epoch
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("lr", "throughput/samples_per_second", "throughput/step_time"):
        assert [int(row["step"]) for row in rows if row[name]] == steps
