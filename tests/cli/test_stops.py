"""benchmarks/stops.py in its short form: a run is asked to stop before it begins, on its way, and when it is over."""

from pathlib import Path

import pytest
from commands import ROOT, python

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["2", "sweep"])
def test_asked_at_any_moment_it_ends_and_continues_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    done = python(ROOT / "benchmarks" / "stops.py", "moments=2", f"kinds={kind}", cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 as they should be" in done.stdout
    codes = [int(line.split("|")[4]) for line in done.stdout.splitlines() if line.startswith("| a ")]
    assert codes[-1] in (0, 75)
