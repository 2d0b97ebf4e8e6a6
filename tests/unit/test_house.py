"""The house does not grow: benchmarks/house.py says what it measures, and how far that is from the budgets."""

from pathlib import Path

import pytest
from house import sizes

CEILINGS = {
    "the core": 10_690,
    "imported by a default run": 10_649,
    "all of src/": 34_565,
    "the largest room": 1_753,
}  # lines; these go down, and up by nothing but what mends a defect


@pytest.mark.slow
def test_it_does_not_grow(tmp_path: Path) -> None:
    measured = sizes(tmp_path)
    assert {name: measured[name] for name in CEILINGS if measured[name] > CEILINGS[name]} == {}
    assert measured["files from train.py to optimizer.step()"] <= 10
