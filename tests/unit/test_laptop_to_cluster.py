"""docs/laptop-to-cluster.md and docs/numbers.md: the tests and the files that they name are there."""

import re

import pytest

from lockstep.runs.composition import CONF

ROOT = CONF.parent
PAGE = (ROOT / "docs" / "laptop-to-cluster.md").read_text()


@pytest.mark.parametrize("page", ["laptop-to-cluster.md", "numbers.md"])
def test_each_test_that_is_named_is_there(page: str) -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 10
    for file, name in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


def test_each_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:deploy|scripts|benchmarks)/[\w.]+)`", PAGE))
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)
