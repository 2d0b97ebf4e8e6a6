"""The answer in words: which number of devices, which rate, and what the next ones would give."""

from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell

from lockstep.report import choice, measurements
from lockstep.report.series import Series, find_series

IDEAL = {1: 0.0100, 2: 0.0102, 4: 0.0108}  # seconds of a step


def answer(folder: Path, cells: list[dict[str, Any]], mode: str = "max", only: tuple[str, ...] = ()) -> str:
    rows = measurements.read(measured.sweep(folder, cells, mode), only)
    return choice.answer(rows, find_series(rows))


def series(folder: Path, cells: list[dict[str, Any]]) -> Series:
    return find_series(measurements.read(measured.sweep(folder, cells)))


def test_the_most_devices_that_pay_are_taken_and_the_next_count_is_compared(tmp_path: Path) -> None:
    cells = [cell(n, lr, step=step, metric=0.95 + lr) for n, step in IDEAL.items() for lr in (0.01, 0.003)]
    cells += [cell(8, lr, step=0.0180, metric=0.95 + lr) for lr in (0.01, 0.003)]
    assert answer(tmp_path, cells) == (
        "Take 4 devices at lr 0.01: 3.7x one device (3.70x to 3.70x) at the same val/acc (0.96, one device 0.96); "
        "8 give 1.2x the speed and cost 1.7x the device-hours."
    )


def test_devices_that_cost_accuracy_are_not_taken(tmp_path: Path) -> None:
    cells = [cell(1, metric=0.95, step=0.010), cell(2, metric=0.85, step=0.0101)]
    assert answer(tmp_path, cells) == (
        "Take 1 device at lr 0.1: val/acc 0.95, and more devices are not worth it; 2 give 2x the speed and lose 0.1 of val/acc."
    )


def test_one_count_neither_batch_and_none(tmp_path: Path) -> None:
    one = answer(tmp_path / "one", [cell(2, lr, metric=lr) for lr in (0.5, 0.6)] + [cell(4, status="failed", reason="boom")])
    said = "Nothing can be said of speed: only one number of devices has results. val/acc is 0.6 on 2 devices at lr 0.6."
    assert one == said
    mixed = answer(tmp_path / "mixed", [cell(1, batch=32), cell(2, batch=20, metric=0.8)])
    assert mixed == (
        "Nothing can be said of speed: neither the batch of a device nor the global batch is the same over the counts. "
        "val/acc is 0.9 on 1 device at lr 0.1, 0.8 on 2 devices at lr 0.1 (worse)."
    )
    none = answer(tmp_path / "none", [cell(2, status="failed", reason="boom"), cell(4, status="queued")])
    assert none == "None of 2 jobs has finished with a result: nothing can be said yet."


def test_an_interval_that_contains_one_says_nothing_of_speed(tmp_path: Path) -> None:
    """Nor of the next count, where it is the next one's; no count is taken, then or when it was taken for faster by its mean."""
    steps = {(1, 0): 0.01, (1, 1): 0.012, (2, 0): 0.004, (2, 1): 0.05}
    cells = [cell(n, seed=seed, global_batch=64, step=step) for (n, seed), step in steps.items()]
    said = answer(tmp_path / "first", cells)
    assert said.startswith("Nothing can be said of speed: whether 2 devices are faster than 1 is not known (0.00x to ")
    assert said.endswith("x). val/acc is 0.9 on 1 device at lr 0.1, 0.9 on 2 devices at lr 0.1 (equal).")
    assert choice.choose(series(tmp_path / "first", [])) is None
    steps = {(1, 0): 0.01, (1, 1): 0.0101, (2, 0): 0.005, (2, 1): 0.0051, (4, 0): 0.002, (4, 1): 0.01}
    said = answer(tmp_path / "next", [cell(n, seed=seed, global_batch=64, step=step) for (n, seed), step in steps.items()])
    assert said.startswith("Take 2 devices at lr 0.1: 2x one device (1.")
    assert "; whether 4 devices are faster than 2 is not known (0.00x to " in said


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"cores": 1}, "there were 2 threads on 1 core in 1 of 2 jobs"),
        ({"load": 2.6}, "the machine had a load of 2.6 on 2 cores in 2 of 2 jobs"),
        ({"load": 2.4}, None),
    ],
)
def test_a_crowded_machine_says_nothing_of_speed(tmp_path: Path, record: dict[str, Any], why: str | None) -> None:
    """Its cores are those of the machine, or the job's part of them."""
    facts = {"accelerator": "cpu", "cpu_count": 2, **record}
    said = answer(tmp_path, [cell(n, step=step, **facts) for n, step in ((1, 0.01), (2, 0.012))])
    unknown = f"Nothing can be said of speed: whether 2 devices are faster than 1 is not known ({why})."
    assert said.startswith(unknown if why else "Take 2 devices")


def test_more_than_the_devices_can_give_is_no_speed(tmp_path: Path) -> None:
    said = answer(tmp_path / "doubt", [cell(1, step=0.0876), cell(2, step=0.010)])
    assert said.startswith("Nothing can be said of speed: 2 devices were 17.5x as fast as 1, more than they can be;")
    assert answer(tmp_path / "caches", [cell(1, step=0.0105), cell(2, step=0.010)]).startswith("Take 2 devices")
