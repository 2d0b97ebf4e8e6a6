"""A plugin of pytest, for benchmarks/lightning_suite.py: writes down each test's outcome as soon as it is known and, where
LOCKSTEP_LOOP is 1, gives every Trainer our epoch loop. Lightning's tests make their trainers themselves, so that its class is
changed here, in the process of the tests and nowhere else. The loop also bears Lightning's name there, for which
test_auto_restart_under_signal asks."""

import functools
import os
from pathlib import Path
from typing import Any

import pytest

_OUTCOMES = Path(os.environ["LOCKSTEP_OUTCOMES"])
_steps = [0, 0]  # by Lightning's way, by the short one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that have run already."""
    lines = _OUTCOMES.read_text().splitlines() if _OUTCOMES.is_file() else []
    done = {line.partition("\t")[2] for line in lines}
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(f"{report.outcome}\t{report.nodeid}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(f"failed\t{report.nodeid}")


def pytest_sessionfinish() -> None:
    _write(f"steps\t{_steps[1]} {_steps[0]}")


def _write(line: str) -> None:
    with _OUTCOMES.open("a") as file:
        file.write(f"{line}\n")


def _use_our_loop() -> None:
    from lightning.pytorch.trainer import trainer as module

    from lockstep.fast_loop.epoch_loop import EpochLoop, install_fast_loop

    init, advance = module.Trainer.__init__, EpochLoop.advance

    @functools.wraps(init)
    def with_our_loop(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        install_fast_loop(self)

    def counted(self: EpochLoop, data_fetcher: Any) -> None:
        _steps[self._plain is not None] += 1
        advance(self, data_fetcher)

    EpochLoop.__name__ = "_TrainingEpochLoop"
    module.Trainer.__init__ = with_our_loop
    EpochLoop.advance = counted


if os.environ.get("LOCKSTEP_LOOP") == "1":
    _use_our_loop()
