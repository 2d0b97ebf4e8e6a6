"""benchmarks/stops.py in its short form: a run is asked to stop before it begins, on its way, and when it is over."""

import functools
import sys
from pathlib import Path

import forked
import pytest
import stops
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

    monkeypatch.setattr(stops, "_train", functools.partial(begun, tmp_path))
    monkeypatch.setattr(stops, "_alive", alive)
    monkeypatch.setattr(sys, "argv", ["stops.py", "moments=2", f"kinds={kind}"])
    stops.main()
    said = capsys.readouterr().out
    assert "2 of 2 as they should be" in said
    codes = [int(line.split("|")[4]) for line in said.splitlines() if line.startswith("| a ")]
    assert codes[-1] in (0, 75)
