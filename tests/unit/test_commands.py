"""What tests start is watched: whatever a command leaves running is ended, and is a failure."""

from collections import Counter
from pathlib import Path

import commands
import forked
import pytest
from commands import ROOT, python
from waiting import wait_for

COMMAND = """
import os, sys, time
if not os.fork():
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT), descriptor)
    if os.fork():  # what it leaves has no parent
        os._exit(0)
    open("began", "w").close()
    os.execvp('sleep', ['sleep', '100'])
while not os.path.exists("began"):
    time.sleep(0.01)
"""


def test_what_is_left_is_ended_and_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "GRACE", 2)
    (tmp_path / "command.py").write_text(COMMAND)
    with pytest.raises(AssertionError, match="left running"):
        python(tmp_path / "command.py", cwd=tmp_path)
    assert (tmp_path / "began").exists()
    wait_for(lambda: not forked.served_in(tmp_path), seconds=30)


def test_modules_of_tests_have_different_names() -> None:
    """They share one path, on which the first of a name would hide the others, in an order that a file system has."""
    names = Counter(path.name for part in ("support", "options") for path in (ROOT / "tests" / part).glob("*/*.py"))
    assert [name for name, number in names.items() if number > 1 and name != "conftest.py"] == []
