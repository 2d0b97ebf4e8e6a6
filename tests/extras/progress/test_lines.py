"""A line breaks where a terminal is narrower."""

import logging
import sys

import pytest

from lockstep.extras.progress.lines import CellFormatter, in_lines


def test_lines_break_between_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = ["epoch 1/3", "step 12", "train/acc 0.5", "train/loss 1.234", "val/acc 0.25", "val/loss 2.345"]
    lines = in_lines(cells, 40).splitlines()
    assert [line.split("  ") for line in lines] == [cells[:3], ["", *cells[3:5]], ["", cells[5]]]
    assert max(map(len, lines)) <= 40
    formatter = CellFormatter("%(message)s")
    record = logging.makeLogRecord({"msg": "  ".join(cells), "cells": cells})
    assert formatter.format(record) == "  ".join(cells)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert formatter.format(record).splitlines() == lines
    assert formatter.format(logging.makeLogRecord({"msg": "x" * 50})) == "x" * 50
