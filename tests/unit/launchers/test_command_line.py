import sys

import pytest

from lockstep.launchers.command_line import command_with


def test_this_program_again_with_more_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1"])
    assert command_with("test=false") == [sys.executable, "train.py", "seed=1", "test=false"]
