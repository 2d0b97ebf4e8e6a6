"""benchmarks/measuring.py: programs whose timed parts run in turns."""

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import measuring
import pytest
from suites import Competitor

WORK = """
import json, pathlib, sys, time
from turns import end_turns, wait_for_turn

stamps = []
wait_for_turn()
began = time.process_time()
while time.process_time() < began + 0.5:
    stamps.append(time.monotonic())
    time.sleep(0.001)
    sum(range(20_000))
end_turns()
pathlib.Path(sys.argv[2]).write_text(json.dumps(stamps))
pathlib.Path(sys.argv[1]).write_text(json.dumps({"train_time": stamps[-1] - stamps[0], "train_cpu_time": 0.5}))
"""


def competitor(name: str, program: str, *arguments: str) -> Competitor:
    command: Callable[[Path], list[str]] = lambda record: ["-c", program, str(record), *arguments]  # noqa: E731
    return Competitor(name, command)


def test_programs_run_in_turns_and_are_timed_while_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "TURN", 0.05)
    files = [tmp_path / name for name in ("a", "b")]
    samples = measuring.measured_in_turns([competitor(file.name, WORK, str(file)) for file in files])
    stamps = [json.loads(file.read_text()) for file in files]
    order = [owner for _, owner in sorted((stamp, owner) for owner, own in enumerate(stamps) for stamp in own)]
    turns = 1 + sum(before != after for before, after in pairwise(order))
    assert 4 <= turns <= len(order) // 5  # were they to run at the same time, every other stamp would be the other's
    for sample, own in zip(samples, stamps, strict=True):
        waits = sum(after - before for before, after in pairwise(own) if after - before > 0.04)
        assert 0 < sample.train_time < own[-1] - own[0] - waits / 2


def test_one_that_fails_ends_all(tmp_path: Path) -> None:
    failing = competitor("failing", "import turns; turns.wait_for_turn(); raise SystemExit('no memory')")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        measuring.measured_in_turns([competitor("a", WORK, str(tmp_path / "a")), failing])
    assert caught.value.__notes__ == ["no memory\n"]
