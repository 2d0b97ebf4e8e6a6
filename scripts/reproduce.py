"""The code of a run, brought back: a worktree of its commit with what the working tree had beside it.

python scripts/reproduce.py RUN_DIR [PATH]

Installs nothing and trains nothing. Prints the one command that runs it again, from the folder in which you are. PATH is where
the worktree comes to lie; by default it is beside the checkout. `git worktree remove PATH` takes it away.

Exit codes: 0, or 2 where the run has no code.patch or its commit is not in this checkout.
"""

import shlex
import sys
from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.extras.history.code import FILE, check_out, read_code
from lockstep.places import project
from lockstep.runs.resume import arguments_for
from lockstep.runs.saved import FOLDER, read_config

CHECKOUT = project()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("path", type=Path, nargs="?", metavar="PATH")
    given = parser.parse_args()
    config, code = read_config(given.run_dir), read_code(given.run_dir)
    if config is None or code is None:
        raise config_error("RUN_DIR", given.run_dir, f"has no {FILE}; accepted is a run that was started in a checkout of git")
    path: Path = given.path or CHECKOUT.with_name(f"{CHECKOUT.name}-{given.run_dir.resolve().name}")
    check_out(CHECKOUT, code, path.absolute())
    print(command(given.run_dir, path.absolute()))


def command(run_dir: Path, path: Path) -> str:
    """The saved config, run by the worktree's train.py with the worktree's package, whichever is installed."""
    words = [sys.executable, str(path / "train.py"), *arguments_for(run_dir.absolute() / FOLDER, ["run_id=null"])]
    return f"PYTHONPATH={shlex.quote(str(path / 'src'))} {shlex.join(words)}"


if __name__ == "__main__":
    start(main)
