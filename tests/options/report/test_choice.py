"""The answer in words: which number of devices, which rate, and what the next ones would give."""

from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell

from lockstep.report import choice, measurements
from lockstep.report.series import find_series


def answer(folder: Path, cells: list[dict[str, Any]]) -> str:
    rows = measurements.read(measured.sweep(folder, cells))
    return choice.answer(rows, find_series(rows))


def test_the_most_devices_that_pay_are_taken_and_the_next_count_is_compared(tmp_path: Path) -> None:
    steps = {1: 0.0100, 2: 0.0102, 4: 0.0108, 8: 0.0180}  # seconds
    cells = [cell(n, lr, step=step, metric=0.95 + lr) for n, step in steps.items() for lr in (0.01, 0.003)]
    assert answer(tmp_path, cells) == (
        "Take 4 devices at lr 0.01: 3.7x one device (3.70x to 3.70x) at the same val/acc (0.96, one device 0.96); "
        "8 give 1.2x the speed and cost 1.7x the device-hours."
    )


BOOM = {"status": "failed", "reason": "boom"}
NOTHING = "The speed is not known: "
OF_CPU = {"accelerator": "cpu", "cpu_count": 2}
ANSWERS = {
    "costs accuracy": (
        [cell(1, metric=0.95, step=0.010), cell(2, metric=0.85, step=0.0101)],
        "Take 1 device at lr 0.1: val/acc 0.95, and more devices are not worth it; 2 give 2x the speed and lose 0.1 of val/acc.",
    ),
    "one count": (
        [cell(2, lr, metric=lr) for lr in (0.5, 0.6)] + [cell(4, **BOOM)],
        f"{NOTHING}only one number of devices has results. val/acc is 0.6 on 2 devices at lr 0.6.",
    ),
    "neither batch": (
        [cell(1, batch=32), cell(2, batch=20, metric=0.8)],
        f"{NOTHING}neither the batch of a device nor the global batch is the same over the counts. "
        "val/acc is 0.9 on 1 device at lr 0.1, 0.8 on 2 devices at lr 0.1 (worse).",
    ),
    "none": ([cell(2, **BOOM)], "None of 1 job has finished with a result: nothing can be said yet."),
    "an interval that contains one": (
        [
            cell(n, seed=seed, global_batch=64, step=step)
            for n, seed, step in ((1, 0, 0.01), (1, 1, 0.012), (2, 0, 0.004), (2, 1, 0.05))
        ],
        f"{NOTHING}whether 2 devices are faster than 1 is not known (0.00x to ",
    ),
    "few cores": (
        [cell(n, step=step, **OF_CPU, cores=1) for n, step in ((1, 0.01), (2, 0.012))],
        f"{NOTHING}whether 2 devices are faster than 1 is not known (there were 2 threads on 1 core in 1 of 2 jobs).",
    ),
    "a busy machine": (
        [cell(n, step=step, **OF_CPU, load=2.6) for n, step in ((1, 0.01), (2, 0.012))],
        f"{NOTHING}whether 2 devices are faster than 1 is not known (the machine had a load of 2.6 on 2 cores in 2 of 2 jobs).",
    ),
    "not so busy": ([cell(n, step=step, **OF_CPU, load=2.4) for n, step in ((1, 0.01), (2, 0.012))], "Take 2 devices"),
    "more than can be": (
        [cell(1, step=0.0876), cell(2, step=0.010)],
        f"{NOTHING}2 devices were 17.5x as fast as 1, more than ideal;",
    ),
    "caches": ([cell(1, step=0.0105), cell(2, step=0.010)], "Take 2 devices"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_not_known_is_not_said(what: str, tmp_path: Path) -> None:
    cells, said = ANSWERS[what]
    assert answer(tmp_path, cells).startswith(said)


def test_the_next_count_is_not_compared_where_its_interval_contains_one(tmp_path: Path) -> None:
    steps = {(1, 0): 0.01, (1, 1): 0.0101, (2, 0): 0.005, (2, 1): 0.0051, (4, 0): 0.002, (4, 1): 0.01}
    said = answer(tmp_path, [cell(n, seed=seed, global_batch=64, step=step) for (n, seed), step in steps.items()])
    assert said.startswith("Take 2 devices at lr 0.1: 2x one device (1.")
    assert "; whether 4 devices are faster than 2 is not known (0.00x to " in said
