"""A sweep's state, and its continuation.

python scripts/sweep.py status SWEEP_DIR    # a table of its jobs, while it runs or afterwards
python scripts/sweep.py resume SWEEP_DIR    # the command it was started with, for what has not finished
"""

import argparse
import os
import sys
from pathlib import Path

from lockstep.cli import quote, start
from lockstep.config import refuse
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.report import COLUMNS, rows_of, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["status", "resume"])
    parser.add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    arguments = parser.parse_args()
    manifest = Manifest(arguments.sweep_dir)
    if not manifest.jobs:
        raise refuse("SWEEP_DIR", arguments.sweep_dir, "has no manifest.json; accepted is the directory of a sweep")
    if arguments.what == "status":
        show(rows_of(manifest, arguments.sweep_dir), COLUMNS)
        return
    command = [item for item in manifest.command if not item.startswith("hydra.sweep.dir=")]
    where = f"hydra.sweep.dir={quote(str(arguments.sweep_dir.absolute()))}"
    os.execv(sys.executable, [sys.executable, *command, where])


if __name__ == "__main__":
    start(main)
