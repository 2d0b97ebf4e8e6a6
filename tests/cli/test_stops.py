"""benchmarks/chaos.py in a short form: a run is asked to stop before it begins, and when it is over."""

import functools
import sys
from pathlib import Path

import chaos
import forked
import pytest
from commands import begun
from waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["2", "sweep"])
def test_asked_at_any_moment_it_ends_and_continues_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alive() -> list[int]:
        """What is forked has no mark of its own."""
        wait_for(lambda: not forked.served_in(tmp_path), seconds=30, pause=0.2)
        return []

    monkeypatch.setattr(chaos, "_train", functools.partial(begun, tmp_path))
    monkeypatch.setattr(chaos, "_alive", alive)
    monkeypatch.setattr(sys, "argv", ["chaos.py", "stop", "2", "--kinds", kind, "--epochs", "2"])
    with pytest.raises(SystemExit) as left:
        chaos.main()
    said = capsys.readouterr().out
    assert left.value.code == 0, said
    assert "2 of 2 as they should be" in said
    codes = [int(line.split("|")[3]) for line in said.splitlines() if line.startswith("| a ")]
    assert codes[-1] in (0, 75)
