"""train.py, of which rank one begins when rank zero has: its imports took longer, say."""

import os
import runpy
import sys
from pathlib import Path

from waiting import wait_for

TRAIN = Path(__file__).parents[3] / "train.py"

if __name__ == "__main__":
    run = Path(next(item.partition("=")[2] for item in sys.argv if item.startswith("hydra.run.dir=")))
    if os.environ["RANK"] == "1":
        wait_for((run / "status.json").exists)
    sys.argv[0] = str(TRAIN)
    runpy.run_path(str(TRAIN), run_name="__main__")
