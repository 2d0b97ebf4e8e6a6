"""How long the default takes from the command to the end of its first step:  python benchmarks/second_command.py [--repeats 5]

As an interpreter of its own and forked from a warm server, in turn, one thread a process. Prints medians of seconds on the clock,
with the distance of the quartiles behind them, and writes them to benchmarks/second_command.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hardware import processor
from run import heading

ROOT = Path(__file__).resolve().parents[1]
LEAVE = "from lockstep.extras.warm.events import leave_server; leave_server(5)"
FIRST_STEP = [str(ROOT / "train.py"), "trainer=cpu", "+callbacks.end={_target_: first_step.End}"]
KINDS = {"an interpreter of its own": ["warm=false"], "forked from a warm server": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    path = os.pathsep.join(str(ROOT / place) for place in ("src", "benchmarks/competitors"))
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": ""}
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # by a short path: a socket's has at most 107 bytes
        environment = os.environ | fixed | {"XDG_RUNTIME_DIR": folder}
        subprocess.run([sys.executable, "-c", LEAVE], env=environment, check=True)
        while not [*Path(folder).glob("lockstep/*.socket")]:
            time.sleep(0.1)
        for _ in range(repeats):
            for name, more in KINDS.items():
                seconds[name].append(_time([sys.executable, *FIRST_STEP, *more], folder, environment))
        subprocess.run([sys.executable, str(ROOT / "scripts" / "warm.py"), "stop"], env=environment, check=True)
    text = "\n".join([heading(processor()), "", "| | s |", "|---|---|", *map(_row, seconds.items()), ""])
    (ROOT / "benchmarks" / "second_command.md").write_text(text)
    print(text)


def _time(command: list[str], folder: str, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)
    return time.perf_counter() - began


def _row(item: tuple[str, list[float]]) -> str:
    name, values = item
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"| {name} | {middle:.2f} ({high - low:.2f}) |"


if __name__ == "__main__":
    main()
