"""Bring back the code of a run: a worktree of its commit with what the working tree had beside it.

lockstep reproduce RUN_DIR [PATH]

Installs nothing and trains nothing. Prints the one command that runs it again, from the folder in which you are. PATH is where
the worktree comes to lie; by default it is beside the checkout. `git worktree remove PATH` takes it away.

Exit codes: 0, or 2 where the run has no code.patch or its commit is not in this checkout.
"""

import shlex
import sys
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.callbacks.code import FILE, check_out
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.places import project
from lockstep.runs.resume import arguments_for
from lockstep.runs.saved import FOLDER, read_config


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("path", type=Path, nargs="?", metavar="PATH")
    given = parser.parse_args()
    run, checkout = read_config(given.run_dir), project()
    if run is None or not (given.run_dir / FILE).is_file():
        raise config_error("RUN_DIR", given.run_dir, f"has no {FILE}; choose a run that was started in a checkout of git")
    path = (given.path or checkout.with_name(f"{checkout.name}-{given.run_dir.resolve().name}")).absolute()
    check_out(checkout, (given.run_dir / FILE).read_bytes(), path)
    command = [sys.executable, str(path / "train.py"), *arguments_for(given.run_dir.absolute() / FOLDER, ["run_id=null"])]
    print(f"PYTHONPATH={shlex.quote(str(path / 'src'))} {shlex.join(command)}")  # the worktree's package, not the installed one


if __name__ == "__main__":
    start(main)
