"""Compare the test accuracies of trainings by number of processes. Prints the tables of benchmarks/accuracy.md.

    python benchmarks/accuracy.py SWEEP_DIR [SWEEP_DIR ...]

Each sweep is over seeds and trainer.devices at one global batch. A row has the mean test accuracy over the seeds, its standard
error, and how far the mean lies from that of one process. Exit code 3 if that is more than a standard error.
"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP_DIR")
    is_equal = True
    for sweep in parser.parse_args().sweeps:
        result = accuracies(sweep)
        print("| processes | seeds | test/acc | standard error | from one process |\n|---|---|---|---|---|")
        one = statistics.mean(result[1])
        for world_size, values in sorted(result.items()):
            mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
            print(f"| {world_size} | {len(values)} | {mean:.5f} | {error:.5f} | {mean - one:+.5f} |")
            is_equal = is_equal and abs(mean - one) <= error
        print()
    print(f"The means differ by {'less' if is_equal else 'MORE'} than their standard error.")
    sys.exit(0 if is_equal else 3)


def accuracies(sweep: Path) -> dict[int, list[float]]:
    """Return the accuracies of a sweep's finished jobs by world size."""
    result: dict[int, list[float]] = defaultdict(list)
    for file in sweep.glob("*/metrics.json"):
        content = json.loads(file.read_text())
        result[content["world_size"]].append(content["metrics"]["test/acc"])
    if min(map(len, result.values()), default=0) < 2 or 1 not in result:
        sys.exit(f"{sweep} has too few finished jobs; train two seeds or more at each of 1 and N processes")
    return result


if __name__ == "__main__":
    main()
