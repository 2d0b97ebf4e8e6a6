"""A sweep's state, and its continuation.

python scripts/sweep.py status SWEEP_DIR    # a table of its jobs, while it runs or afterwards
python scripts/sweep.py resume SWEEP_DIR    # its commands once more, for what has not finished
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.errors import config_error
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.report import COLUMNS, rows_of, show
from lockstep.sweeps.sweep import PREEMPTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["status", "resume"])
    parser.add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    arguments = parser.parse_args()
    manifest = Manifest(arguments.sweep_dir)
    if not manifest.jobs:
        raise config_error("SWEEP_DIR", arguments.sweep_dir, "has no manifest.json; accepted is the directory of a sweep")
    if arguments.what == "status":
        show(rows_of(manifest, arguments.sweep_dir), COLUMNS)
        return
    sys.exit(resume(manifest, arguments.sweep_dir.absolute()))


def resume(manifest: Manifest, sweep_dir: Path) -> int:
    """Runs every command that was given for the directory again, where it was given; the worst of their exit codes."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the sweep, which is of the same terminal
    codes = []
    for command in manifest.commands:
        codes.append(subprocess.call([sys.executable, *in_directory(command, sweep_dir)], cwd=manifest.cwd))
        if codes[-1] == PREEMPTED:
            break
    return max(codes)


def in_directory(command: list[str], sweep_dir: Path) -> list[str]:
    """The command line with its sweep directory set; Hydra's parser wants all overrides in one place."""
    kept = [item for item in command if not item.startswith("hydra.sweep.dir=")]
    place = next((i for i, item in enumerate(kept) if i and "=" in item and not item.startswith("-")), 1)
    return [*kept[:place], f"hydra.sweep.dir={quote(str(sweep_dir))}", *kept[place:]]


if __name__ == "__main__":
    start(main)
