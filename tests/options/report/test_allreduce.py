"""The cost of an all-reduce: the table, and real processes measured for a moment."""

import json
from pathlib import Path

from commands import ROOT, python


def test_it_prints_and_writes_the_times_of_all_counts_up_to_the_largest(tmp_path: Path) -> None:
    options = ("--processes", "2", "3", "--seconds", "0.1", "--largest", "0.01", "--json", "times.json", "--backend", "gloo")
    done = python(ROOT / "scripts" / "allreduce.py", *options, cwd=tmp_path, GLOO_SOCKET_IFNAME="lo", code=0)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.split()[0].isdecimal()]
    assert rows == [[count, size] for count in ("2", "3") for size in ("1", "4")]
    written = json.loads((tmp_path / "times.json").read_text())["processes"]
    assert {count: times["sizes"] for count, times in written.items()} == {"2": [1024, 4096], "3": [1024, 4096]}
