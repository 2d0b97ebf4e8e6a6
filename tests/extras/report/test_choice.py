"""The answer in words: which number of devices, which rate, and what the next ones would give."""

from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell

from lockstep.extras.report import choice, measurements
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.series import metric_change

IDEAL = {1: 0.0100, 2: 0.0102, 4: 0.0108}  # seconds of a step


def analyze(folder: Path, cells: list[dict[str, Any]], mode: str = "max") -> Analysis:
    return Analysis(measurements.read(measured.sweep(folder, cells, mode)))


def answer(folder: Path, cells: list[dict[str, Any]], mode: str = "max") -> str:
    return choice.answer(analyze(folder, cells, mode))


def test_the_most_devices_that_pay_are_taken_and_the_next_count_is_compared(tmp_path: Path) -> None:
    cells = [cell(n, lr, step=step, metric=0.95 + lr) for n, step in IDEAL.items() for lr in (0.01, 0.003)]
    cells += [cell(8, lr, step=0.0180, metric=0.95 + lr) for lr in (0.01, 0.003)]
    assert answer(tmp_path, cells) == (
        "Take 4 devices at lr 0.01: 3.7x one device at the same val/acc (0.96, one device 0.96); "
        "8 give 1.2x the speed and cost 1.7x the device-hours."
    )


def test_devices_that_cost_accuracy_are_not_taken(tmp_path: Path) -> None:
    cells = [cell(1, metric=0.95, step=0.010), cell(2, metric=0.85, step=0.0101)]
    assert answer(tmp_path, cells) == (
        "Take 1 device at lr 0.1: val/acc 0.95, and more devices are not worth it; 2 give 2x the speed and lose 0.1 of val/acc."
    )


def test_the_answer_and_the_table_have_one_change_and_one_test_of_chance(tmp_path: Path) -> None:
    """Two rates and two seeds at one global batch: the best rates differ by 0.02, jobs of one rate and seed by no more than
    chance. What is said to be lost is what the table has."""
    metrics = {(1, 0.1): (0.90, 0.90), (1, 0.2): (0.86, 0.88), (2, 0.1): (0.88, 0.86), (2, 0.2): (0.87, 0.89)}
    cells = [
        cell(n, lr, seed=seed, global_batch=64, step=0.01 / n, metric=metric)
        for (n, lr), values in metrics.items()
        for seed, metric in enumerate(values)
    ]
    analysis = analyze(tmp_path / "chance", cells)
    assert analysis.series is not None
    assert metric_change(analysis.series.points[1], analysis.series, maximize=True).verdict == "not beyond chance"
    assert choice.answer(analysis).startswith("Take 2 devices at lr 0.2: 2x one device at the same val/acc")
    worse = [one | {"metric": one["metric"] - 0.3 * (one["devices"] == 2)} for one in cells]
    analysis = analyze(tmp_path / "worse", worse)
    assert analysis.series is not None
    change = metric_change(analysis.series.points[1], analysis.series, maximize=True)
    assert (change.verdict, change.lost) == ("worse", pytest.approx(0.31))
    assert choice.answer(analysis).endswith("2 give 2x the speed and lose 0.31 of val/acc.")


def test_less_of_a_loss_is_better(tmp_path: Path) -> None:
    cells = [cell(1, lr, metric=lr, step=0.010) for lr in (0.3, 0.2)] + [cell(2, 0.2, metric=0.15, step=0.0101)]
    assert answer(tmp_path, cells, "min").startswith(
        "Take 2 devices at lr 0.2: 2x one device at a better val/acc (0.15, one device 0.2)"
    )


def test_what_repeats_show_to_be_chance_is_no_loss(tmp_path: Path) -> None:
    """Means of 0.90 and 0.88, where runs differ by 0.1."""
    cells = [cell(1, seed=seed, metric=0.85 + 0.05 * seed, step=0.010) for seed in range(3)]
    cells += [cell(2, seed=seed, metric=0.83 + 0.05 * seed, step=0.0101) for seed in range(3)]
    assert answer(tmp_path / "noisy", cells).startswith("Take 2 devices")
    sure = [one | {"metric": 0.9 - 0.02 * (one["devices"] == 2) + 0.001 * one["seed"]} for one in cells]
    assert answer(tmp_path / "sure", sure).startswith("Take 1 device at")


def test_devices_that_add_no_speed_are_not_taken(tmp_path: Path) -> None:
    line = answer(tmp_path, [cell(1, step=0.010), cell(2, step=0.0180)])
    assert line.endswith("more devices are not worth it; 2 give 1.1x the speed and cost 1.8x the device-hours.")


def test_one_count_and_none(tmp_path: Path) -> None:
    one = answer(tmp_path / "one", [cell(2, lr, metric=lr) for lr in (0.5, 0.6)] + [cell(4, status="failed", reason="boom")])
    assert one == (
        "Take 2 devices at lr 0.6, the best of 2 rates: val/acc 0.6. Only one number of devices has results, so nothing is known "
        "of speed-up."
    )
    none = answer(tmp_path / "none", [cell(2, status="failed", reason="boom"), cell(4, status="waiting")])
    assert none == "None of 2 jobs has finished with a result: nothing can be said yet."


@pytest.mark.parametrize(("threads", "cores", "crowded"), [(1, None, 0), (2, None, 1), (1, 1, 1)])
def test_processes_that_share_cores_are_noticed(tmp_path: Path, threads: int, cores: int | None, crowded: int) -> None:
    """Those of the machine, or the job's part of them."""
    on_cpu = {"accelerator": "cpu", "cpu_count": 2, "cores": cores, "threads": threads}
    analysis = analyze(tmp_path, [cell(n, step=step, **on_cpu) for n, step in ((1, 0.01), (2, 0.012))])
    assert len(analysis.crowded) == crowded


@pytest.mark.parametrize(
    ("threads", "why"), [((1, 1), "the machine was busy with something else, say"), ((2, 1), "processes had 2, 1 threads")]
)
def test_more_than_the_devices_can_give_is_doubted_first(tmp_path: Path, threads: tuple[int, int], why: str) -> None:
    cells = [cell(1, step=0.0876, threads=threads[0]), cell(2, step=0.010, threads=threads[1])]
    assert answer(tmp_path / "doubt", cells).startswith(
        f"Don't trust these times: 2 devices were 17.5x as fast as 1 device ({why}). Take 2 devices"
    )
    assert answer(tmp_path / "caches", [cell(1, step=0.0105), cell(2, step=0.010)]).startswith("Take 2 devices")


def test_an_impossible_mean_is_doubted_however_wide_its_interval(tmp_path: Path) -> None:
    cells = [cell(1, lr, step=step) for lr, step in ((0.1, 0.01), (0.2, 0.4))] + [cell(2, lr, step=0.01) for lr in (0.1, 0.2)]
    assert answer(tmp_path, cells).startswith("Don't trust these times: 2 devices were 12.6x")


def test_jobs_that_are_left_out_are_said_at_once(tmp_path: Path) -> None:
    """Also where the command line has chosen."""
    folder = measured.sweep(tmp_path, [cell(n, overrides=(f"model.width={width}",)) for n in (1, 2) for width in (8, 16)])
    own = choice.answer(Analysis(measurements.read(folder)))
    assert own.endswith(". This is of 2 of the sweep's 4 jobs: left out are 2 of model.width=16.")
    chosen = choice.answer(Analysis(measurements.read(folder, ["model.width=8"])))
    assert chosen.endswith(". This is of 2 of the sweep's 4 jobs.")


def test_gradients_have_the_bytes_of_their_precision(tmp_path: Path) -> None:
    for precision, size in {"32-true": 4e6, "bf16-mixed": 4e6, "bf16-true": 2e6, "64-true": 8e6}.items():
        assert analyze(tmp_path / precision, [cell(1, precision=precision)]).gradient_bytes == size
