"""How many devices, which batch and which rate, from the checkpoints of a run:  python scripts/plan.py RUN_DIR

python scripts/plan.py RUN_DIR
python scripts/plan.py RUN_DIR trainer.devices=1,2,4 plan.budget=0.1

This is `python train.py -m sweep=plan` with the settings of that run, from whose checkpoints larger batches are tried too. It
must have a checkpoint from within its training. Overrides that follow are the sweep's.

Exit codes: those of a sweep.
"""

import os
import sys
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import override_key, quote
from lockstep.errors import config_error
from lockstep.extras.fork.command import command_to_fork
from lockstep.places import project
from lockstep.runs.identity import Identity

_OF_THE_RUN = ("fork", "trainer.devices", "datamodule.global_batch_size")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="of the sweep")
    given = parser.parse_args()
    command = [sys.executable, str(project() / "train.py"), "-m", *arguments(given.run_dir.absolute(), given.overrides)]
    os.execv(sys.executable, command)


def arguments(run_dir: Path, overrides: list[str]) -> list[str]:
    """The run's own settings, read and checked as a fork of it has them, and the sweep's."""
    identity = Identity.read(run_dir)
    if identity is None:
        raise config_error("RUN_DIR", run_dir, "has no run.json; accepted is the directory of a run")
    settings = [
        item for item in command_to_fork([f"fork={quote(str(run_dir))}"], str(run_dir)) if override_key(item) not in _OF_THE_RUN
    ]
    batch = [] if identity.global_batch_size is None else [f"datamodule.global_batch_size={identity.global_batch_size}"]
    return [*settings, *batch, "sweep=plan", f"plan.run={quote(str(run_dir))}", *overrides]


if __name__ == "__main__":
    start(main)
