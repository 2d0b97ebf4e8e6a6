"""What a sweep adds to each job: the same jobs by hand, one after the other, and as a sweep.

python benchmarks/launcher_time.py [--jobs 5] > benchmarks/launcher_time.md
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "train.py"), "trainer=cpu", "debug=fast"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        timed([*TRAIN, "seed=100"], folder)  # the first one reads the packages from disk
        by_hand = [timed([*TRAIN, f"seed={seed}"], folder) for seed in range(jobs)]
        sweep = timed([*TRAIN[:2], "-m", *TRAIN[2:], f"seed={','.join(map(str, range(jobs)))}"], folder)
    mean, spread = statistics.mean(by_hand), statistics.stdev(by_hand)
    print(f"`python benchmarks/launcher_time.py --jobs {jobs}`; Python {platform.python_version()}, {platform.machine()}.\n")
    print("| | s per job |\n|---|---|")
    print(f"| `python train.py trainer=cpu debug=fast`, by hand | {mean:.2f} (spread {spread:.2f}) |")
    print(f"| `python train.py -m trainer=cpu debug=fast seed=...`, all in all | {sweep / jobs:.2f} |")
    print(f"| added per job | {sweep / jobs - mean:.2f} |")


def timed(command: list[str], folder: str) -> float:
    """Seconds from start to end."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
