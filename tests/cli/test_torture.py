"""benchmarks/torture.py, a part of it; the whole is in benchmarks/torture.md."""

from pathlib import Path

import pytest
from commands import ROOT, python


@pytest.mark.slow
def test_bad_command_lines_end_with_one_line_and_leave_nothing(tmp_path: Path) -> None:
    done = python(ROOT / "benchmarks" / "torture.py", "--every", "101", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| **all** | " in done.stdout
