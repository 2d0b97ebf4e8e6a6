"""What is read of a sweep's directory: its rows, and by hand the throughput, the speed-up and the best rate of its series."""

from pathlib import Path

import measured
import pytest
from measured import cell

from lockstep.errors import ConfigError
from lockstep.report.measurements import DIVERGED, MISSING, read
from lockstep.report.series import WEAK, find_series


def test_jobs_that_have_not_finished_are_rows_with_their_reason(tmp_path: Path) -> None:
    cells = [
        cell(2, status="failed", reason="rank 1: ValueError: boom"),
        cell(2, lr=1.0, status="failed", reason="rank 0: at step 3 the loss is nan, of samples 1, 2"),
        cell(2, lr=2.0, status="failed", reason="val/loss not finite"),
        cell(4, status="queued", global_batch=64),
        cell(4, lr=1.0, status="running"),
        cell(4, lr=2.0, status="preempted", reason="preempted by SIGTERM"),
    ]
    rows = read(measured.sweep(tmp_path, cells)).rows
    assert [row.status for row in rows] == ["failed", DIVERGED, DIVERGED, MISSING, MISSING, MISSING]
    assert [rows[number].reason for number in (0, 3, 5)] == ["rank 1: ValueError: boom", "queued", "preempted by SIGTERM"]
    assert [row.global_batch for row in rows] == [64, 64, 64, 64, 128, 128]
    assert all(row.samples_per_second is None for row in rows)


def test_jobs_that_differ_in_other_keys_are_kept_apart(tmp_path: Path) -> None:
    cells = [cell(devices, overrides=(f"model={model}",)) for model in ("mlp", "cnn") for devices in (1, 2)]
    sweep = measured.sweep(tmp_path, [*cells, cell(4, overrides=("model=cnn",))])
    rows = read(sweep)
    assert (rows.rows[0].variant, rows.left_out) == (("model=cnn",), {("model=mlp",): 2})
    assert [row.devices for row in rows.rows] == [1, 2, 4]
    assert [row.devices for row in read(sweep, ["model=mlp"]).rows] == [1, 2]
    with pytest.raises(ConfigError, match="--only=model=vgg: no job has these"):
        read(sweep, ["model=vgg"])


def test_the_rate_of_a_plain_module_is_an_axis_and_devices_are_those_it_ran_on(tmp_path: Path) -> None:
    cells = [cell(n, lr, rate="learning_rate") for n in (1, 2) for lr in (0.001, 0.01)]
    read_back = read(measured.sweep(tmp_path, [*cells, cell(8, 0.001, rate="learning_rate", world_size=4)]))
    expected = [*((n, lr, ()) for n in (1, 2) for lr in (0.001, 0.01)), (4, 0.001, ())]
    assert [(row.devices, row.lr, row.variant) for row in read_back.rows] == expected


def test_weak_scaling_keeps_the_batch_of_a_device(tmp_path: Path) -> None:
    """Steps vary by 2% over the seeds."""
    steps = {1: 0.010, 2: 0.0125, 4: 0.016}  # seconds
    cells = [
        cell(n, lr, seed, step=step * (0.98 + 0.02 * seed)) for n, step in steps.items() for lr in (0.1, 0.3) for seed in range(3)
    ]
    series = find_series(read(measured.sweep(tmp_path, cells)))
    assert (series.kind, series.batch, [point.devices for point in series.points]) == (WEAK, 32, [1, 2, 4])
    assert [point.global_batch for point in series.points] == [32, 64, 128]
    assert [point.speedup.mean for point in series.points] == [1.0, pytest.approx(2 / 1.25), pytest.approx(4 / 1.6)]
    assert series.points[2].efficiency.mean == pytest.approx(1 / 1.6)
    assert series.points[2].throughput.mean == pytest.approx(128 / 0.016, rel=1e-3)
    low, high = series.points[2].speedup.interval or (0.0, 0.0)
    assert low < series.points[2].speedup.mean < high < low + 0.2


def test_a_rate_at_which_a_repeat_has_diverged_is_the_best_where_there_is_no_other(tmp_path: Path) -> None:
    """The mean of those that have finished is that of the lucky ones."""
    unlucky = [cell(1, 0.3, metric=0.9), cell(1, 0.3, 1, status="failed", reason="at step 3 the loss is nan")]
    steady = [cell(1, 0.1, seed, metric=0.8) for seed in (0, 1)]
    for folder, jobs, rate in (("both", steady + unlucky, 0.1), ("one", unlucky, 0.3)):
        assert find_series(read(measured.sweep(tmp_path / folder, jobs))).base.lr == rate
