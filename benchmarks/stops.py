"""Asks runs and sweeps to stop at moments from the first millisecond to after the last line, and continues them.

    python benchmarks/stops.py moments=40 > benchmarks/stops.md
    python benchmarks/stops.py moments=4 kinds=2

A third of the moments are of a run of one process, of a run of two, and of a sweep of two jobs; where there is an import
server, every third of them finds it stopped (SIGSTOP). SIGTERM must end the command with code 75, or 0 if it was finishing,
within the deadline, with nothing alive, and with a directory that can be continued or nothing left; continued, it must come
to the checkpoints and metrics of an undisturbed one, bit for bit. Before its first line a program is the interpreter's:
it then ends by the signal, and leaves nothing; the first of each kind is asked then, and begun again it is the undisturbed
one. Exit code 3 if one does not.
"""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from chaos import TRAINING, _train, _verdict

from lockstep.cli import start
from lockstep.config.rules import integer
from lockstep.errors import ExitCode, config_error

KINDS: tuple[str, ...] = ("1", "2", "sweep")
DEADLINE = 60  # seconds, of the runs
SLACK = 30  # seconds more for the end of the processes around them, on a machine that has much else to do
MARK = "LOCKSTEP_STOPS"  # in the environment of all that is started
OPTIONS = (*TRAINING, "trainer.max_epochs=2", f"guards.preemption.deadline={DEADLINE}")


class Row(NamedTuple):
    kind: str
    moment: float
    server: str  # stopped, or not
    code: int
    seconds: float
    left: str
    verdict: str

    @property
    def is_good(self) -> bool:
        before = self.code == -signal.SIGTERM and self.left == "nothing"  # the interpreter was not up
        return self.verdict == "equal" and (before or self.code in (0, ExitCode.PREEMPTED)) and self.seconds < DEADLINE + SLACK


def main() -> None:
    moments, kinds = _settings(sys.argv[1:])
    began, rows = time.monotonic(), list[Row]()
    os.environ[MARK] = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="stops-") as folder:
        for place, kind in enumerate(kinds):
            # a run that is asked before its first line leaves nothing: what is then begun is undisturbed
            since, peaceful = time.monotonic(), Path(folder) / f"{kind}-in-peace"
            rows.append(_asked(peaceful, kind, 0.001, peaceful, stops_server=False))
            assert rows[-1].verdict == "equal", rows[-1]
            length = time.monotonic() - since
            count = len(range(place, moments, len(kinds)))
            for number in range(1, count):
                moment = 1.05 * length * number / (count - 1)
                rows.append(_asked(Path(folder) / f"{kind}-{number}", kind, moment, peaceful, stops_server=number % 3 == 2))
                print(rows[-1], file=sys.stderr, flush=True)
    _show(rows, moments, time.monotonic() - began)
    if not all(row.is_good for row in rows):
        sys.exit(3)


def _settings(arguments: list[str]) -> tuple[int, list[str]]:
    moments, kinds = 40, list(KINDS)
    for argument in arguments:
        if argument in ("-h", "--help"):
            print(__doc__)
            sys.exit(0)
        key, _, value = argument.partition("=")
        if key == "moments" and value.isdigit() and int(value):
            moments = int(value)
        elif key == "kinds" and {*value.split(",")} <= {*KINDS}:
            kinds = value.split(",")
        else:
            raise config_error(key, value, f"accepted are moments, {integer(1).words}, and kinds, of {','.join(KINDS)}")
    return moments, kinds


def _begun(run: Path, kind: str) -> "subprocess.Popen[bytes]":
    if kind == "sweep":
        return _train(run, "-m", *OPTIONS, "trainer.devices=1", "seed=1,2", f"hydra.sweep.dir={run}")
    return _train(run, *OPTIONS, f"trainer.devices={kind}", f"hydra.run.dir={run}")


def _continued(run: Path, kind: str) -> "subprocess.Popen[bytes]":
    return _train(run, f"resume={run}") if (run / "run.json").is_file() else _begun(run, kind)


def _asked(run: Path, kind: str, moment: float, peaceful: Path, stops_server: bool) -> Row:
    process = _begun(run, kind)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=moment)
    server = next(iter(_servers(process.pid)), None) if stops_server else None
    if server is not None:
        os.kill(server, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    since = time.monotonic()
    try:
        code = process.wait(timeout=DEADLINE + SLACK)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    seconds = time.monotonic() - since
    alive = _alive()
    left = ", ".join(_left(run)) or "nothing"
    verdict = f"alive: {alive}" if alive else _end(run, kind, peaceful, is_over=code == 0)
    return Row(kind, moment, "no" if server is None else "yes", code, seconds, left, verdict)


def _left(run: Path) -> list[str]:
    """What tells that a run or a sweep has begun; the output file is ours."""
    return sorted(path.name for path in run.iterdir() if path.name in ("run.json", "status.json", "manifest.json", "lock"))


def _end(run: Path, kind: str, peaceful: Path, is_over: bool) -> str:
    """How what was broken off compares with what was left in peace, once it is continued to its end."""
    if not is_over and (code := _continued(run, kind).wait(timeout=600)) != 0:
        return f"code {code}: {' '.join((run / 'output.txt').read_text().split())[-300:]}"
    pairs = [(run, peaceful)]
    if kind == "sweep":
        pairs = [(run / path.parent.name, path.parent) for path in peaceful.glob("*/metrics.json")]
    result = [_verdict(*pair, 2 if kind == "2" else 1)[0] for pair in pairs]
    return next((verdict for verdict in result if verdict != "equal"), "equal")


def _servers(parent: int) -> list[int]:
    """The import servers that a process has started, by proc(5)."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if is_child and b"server" in (folder / "cmdline").read_bytes():
                result.append(int(folder.name))
    return result


def _alive() -> list[int]:
    """What has outlived its command by more than a moment; this process has no such mark: it was set when it had begun."""
    mark, deadline = f"{MARK}={os.environ[MARK]}".encode(), time.monotonic() + 10
    while result := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return result


def _has(path: Path, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in path.read_bytes()
    return False


def _show(rows: list[Row], moments: int, seconds: float) -> None:
    print(f"`python benchmarks/stops.py moments={moments}`; Python {platform.python_version()}, {platform.machine()}, ", end="")
    print(f"{os.cpu_count()} cores, {seconds:.0f} s.\n")
    print("| what | SIGTERM after (s) | server stopped | code | ended within (s) | left | continued to the end |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        what = "a sweep" if row.kind == "sweep" else f"a run of {row.kind}"
        values = (what, f"{row.moment:.3g}", row.server, row.code, f"{row.seconds:.1f}", row.left, row.verdict)
        print(f"| {' | '.join(map(str, values))} |")
    good = sum(row.is_good for row in rows)
    print(f"\n{good} of {len(rows)} as they should be; the longest end took {max(row.seconds for row in rows):.1f} s.")


if __name__ == "__main__":
    start(main)
