"""What tests start is watched: whatever a command leaves running is ended, and is a failure."""

from collections import Counter
from pathlib import Path

import forked
import pytest
from commands import ROOT, python
from waiting import wait_for

COMMAND = """
import os, sys, time
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import start_process
os.environ["HYDRA_FULL_ERROR"] = "1"  # as in every command of ours
with open("output", "wb") as output:
    start_process([sys.executable, "job.py"], dict(os.environ), (SWEEP_PIPE, os.pipe()[0]), output, output)
while not os.path.exists("began"):
    time.sleep(0.01)
"""
JOB = """
import os, time
if {is_orphan} and os.fork():
    os._exit(0)
open("began", "w").close()
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("is_orphan", "more"),
    [(False, {}), (True, {}), (False, {"GIVEN": "1"})],
    ids=["a job", "what a job has left", "a job of a server of its own"],
)
def test_what_is_left_is_ended_and_a_failure(is_orphan: bool, more: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    (tmp_path / "job.py").write_text(JOB.format(is_orphan=is_orphan))
    with pytest.raises(AssertionError, match="left running"):
        python(tmp_path / "command.py", cwd=tmp_path, **more)
    assert (tmp_path / "began").exists()
    wait_for(lambda: not forked.served_in(tmp_path), seconds=30)


def test_modules_of_tests_have_different_names() -> None:
    """They share one path, on which the first of a name would hide the others, in an order that a file system has."""
    names = Counter(path.name for part in ("support", "extras") for path in (ROOT / "tests" / part).glob("*/*.py"))
    assert [name for name, number in names.items() if number > 1 and name != "conftest.py"] == []
