"""Throughput, speed-up and the best rate, by hand."""

from pathlib import Path

import measured
import pytest
from measured import cell

from lockstep.report.measurements import Measurements, read
from lockstep.report.series import WEAK, find_series

STEPS = {1: 0.010, 2: 0.0125, 4: 0.016}  # seconds of a step


def weak(folder: Path, lrs: tuple[float, ...] = (0.1, 0.3), seeds: int = 3) -> Measurements:
    """Steps vary by 2% over the seeds; the larger rate is better on four devices only."""
    cells = [
        cell(devices, lr, seed, step=step * (0.98 + 0.02 * seed), metric=0.9 + 0.01 * ((lr > 0.2) == (devices > 2)))
        for devices, step in STEPS.items()
        for lr in lrs
        for seed in range(seeds)
    ]
    return read(measured.sweep(folder, cells))


def test_weak_scaling_keeps_the_batch_of_a_device(tmp_path: Path) -> None:
    series = find_series(weak(tmp_path))
    assert (series.kind, series.batch, [point.devices for point in series.points]) == (WEAK, 32, [1, 2, 4])
    assert [point.global_batch for point in series.points] == [32, 64, 128]
    assert [point.speedup.mean for point in series.points] == [1.0, pytest.approx(2 / 1.25), pytest.approx(4 / 1.6)]
    assert series.points[2].efficiency.mean == pytest.approx(1 / 1.6)
    assert series.points[2].throughput.mean == pytest.approx(128 / 0.016, rel=1e-3)
    low, high = series.points[2].speedup.interval or (0.0, 0.0)
    assert low < series.points[2].speedup.mean < high < low + 0.2  # six runs that vary by 2%


def test_a_rate_at_which_a_repeat_has_diverged_is_the_best_where_there_is_no_other(tmp_path: Path) -> None:
    """The mean of those that have finished is that of the lucky ones."""
    jobs = [cell(1, 0.1, seed, metric=0.8) for seed in (0, 1)] + [cell(1, 0.3, metric=0.9)]
    jobs += [
        cell(1, 0.3, 1, status="failed", reason="at step 3 the loss is nan"),
        cell(1, 0.1, 2, status="failed", reason="boom"),
    ]
    for folder, some, rate in (("both", jobs, 0.1), ("one", jobs[2:], 0.3)):
        series = find_series(read(measured.sweep(tmp_path / folder, some)))
        assert (series.base.lr, len(series.base.rows)) == (rate, 3 if rate == 0.1 else 1)
