"""The table of benchmarks/accuracy.md: does the number of processes change what a training comes to?

    python scripts/accuracy.py SWEEP_DIR [SWEEP_DIR ...]

Each sweep is over seeds and trainer.devices at one global batch. For each number of processes: the mean test accuracy over
the seeds, its standard error, and how far the mean lies from that of one process.
"""

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path

from lockstep.config import refuse
from lockstep.record import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP_DIR")
    for sweep in parser.parse_args().sweeps:
        print("| processes | seeds | test/acc | standard error | from one process |\n|---|---|---|---|---|")
        found = accuracies(sweep)
        one = statistics.mean(found[1])
        for world_size, values in sorted(found.items()):
            mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
            print(f"| {world_size} | {len(values)} | {mean:.5f} | {error:.5f} | {mean - one:+.5f} |")
        print()


def accuracies(sweep: Path) -> dict[int, list[float]]:
    """By world size, of the finished jobs of a sweep."""
    found: dict[int, list[float]] = defaultdict(list)
    for file in sweep.glob("*/metrics.json"):
        content = read_json(file) or {}
        found[content["world_size"]].append(content["metrics"]["test/acc"])
    if not found[1]:
        raise refuse("SWEEP_DIR", sweep, "has no finished job of one process")
    return found


if __name__ == "__main__":
    main()
