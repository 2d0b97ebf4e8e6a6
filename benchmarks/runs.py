"""How long does `lockstep runs` take where there are thousands of runs? One run is trained, and its records are copied.

    python benchmarks/runs.py [RUNS]        # 2000 by default; a Markdown table

Seconds of each command, Python's start included: of the clock, and of the processor.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ("run.json", "status.json", "metrics.json", ".hydra")
COMMANDS = ("", "--sort val/acc", "--where model=cnn", "--where model.optimizer.lr=1e-3", "--best", "--json", "--csv")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        run, logs = Path(folder, "run"), Path(folder, "logs")
        command = [sys.executable, ROOT / "train.py", "debug=fast", "trainer=cpu", f"hydra.run.dir={run}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for number in range(count):
            copy_records(run, logs / f"sweep{number // 100}" / str(number), number / count)
        print(f"| {count:,} runs | clock | processor |\n|---|---|---|")
        for arguments in COMMANDS:
            wall, processor = measure(arguments, logs)
            print(f"| `{' '.join(['lockstep runs', arguments]).strip()}` | {wall:.1f} | {processor:.1f} |", flush=True)


def copy_records(run: Path, target: Path, accuracy: float) -> None:
    target.mkdir(parents=True)
    for name in RECORDS:
        (shutil.copytree if (run / name).is_dir() else shutil.copy)(run / name, target / name)
    record = json.loads((run / "metrics.json").read_text())
    record["metrics"]["val/acc"] = accuracy
    (target / "metrics.json").write_text(json.dumps(record, indent=2))


def measure(arguments: str, logs: Path) -> tuple[float, float]:
    begin, before = time.perf_counter(), os.times()
    command = [sys.executable, ROOT / "scripts" / "runs.py", logs, *arguments.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, used


if __name__ == "__main__":
    main()
