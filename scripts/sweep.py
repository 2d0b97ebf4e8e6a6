"""A sweep's state, and its continuation.

lockstep sweep status SWEEP_DIR                  # a table of its jobs, while it runs or afterwards
lockstep sweep watch SWEEP_DIR                   # the same every few seconds until the sweep has ended; ends with its exit code
lockstep sweep resume SWEEP_DIR                  # run the jobs that have not finished
lockstep sweep cancel SWEEP_DIR                  # takes its jobs out of a cluster's queue, running ones too; resume continues
"""

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import OmegaConf

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import override_key, quote
from lockstep.errors import ExitCode, config_error
from lockstep.launchers.stop_signals import Preempted
from lockstep.places import project
from lockstep.runs.directory import SWEEP_FILE
from lockstep.sweeps.jobs import SweepJobs
from lockstep.sweeps.table import look_at, print_table, queue

_OF_ONE_CALL = ("hydra.mode", "hydra.sweep.dir")
INTERVAL, QUEUE_INTERVAL = 2.0, 10.0  # seconds between two looks at the directory, and at a cluster's queue


def main() -> None:
    parser = script_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("status", "watch", "resume", "cancel"):
        commands.add_parser(name).add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    commands.choices["resume"].add_argument("--program", type=Path, default=project() / "train.py", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.what == "watch":
        sys.exit(watch(arguments.sweep_dir))
    if arguments.what == "status":
        show(look_at(arguments.sweep_dir))
        return
    sweep_jobs = SweepJobs(arguments.sweep_dir)
    if not sweep_jobs.jobs:
        raise config_error("SWEEP_DIR", arguments.sweep_dir, "names no jobs; use the directory of a sweep")
    if arguments.what == "cancel":
        console.say(f"{queue().cancel(sweep_jobs)} job(s) cancelled")
    else:
        resume(arguments.sweep_dir.absolute(), arguments.program.absolute())


def watch(sweep_dir: Path) -> int:
    """Show the sweep until it has ended; return its exit code, or 0 where it was left before."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    try:
        while is_under_way(sweep_jobs := look_at(sweep_dir)):
            print(clear, end="")
            print_table(sweep_jobs)
            time.sleep(QUEUE_INTERVAL if sweep_jobs.in_queue() else INTERVAL)
    except Preempted:
        return ExitCode.FINISHED
    print(clear, end="")
    show(sweep_jobs)
    return sweep_jobs.exit_code


def show(sweep_jobs: SweepJobs) -> None:
    """Print the table, and what a person can do about the sweep where it does not run and is not finished."""
    print_table(sweep_jobs)
    if not sweep_jobs.is_running and sweep_jobs.exit_code != ExitCode.FINISHED:
        queued = "; a cluster has jobs in its queue" if sweep_jobs.in_queue() else ""
        resume = console.command_line("lockstep", "sweep", "resume", sweep_jobs.directory)
        print(f"No sweep process{queued}. Continue it: {resume}", flush=True)


def is_under_way(sweep_jobs: SweepJobs) -> bool:
    """True while a process or a cluster has any of its jobs."""
    return sweep_jobs.is_running or bool(sweep_jobs.in_queue())


def resume(sweep_dir: Path, program: Path) -> NoReturn:
    """Become the program, as it was called last for the directory, in the same folder."""
    hydra: Any = OmegaConf.load(sweep_dir / SWEEP_FILE).hydra
    if hydra.job.name != program.stem:
        raise config_error("SWEEP_DIR", sweep_dir, f"was started by {hydra.job.name}.py; give --program and where that is")
    given: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
    overrides = [item for item in (*given["task"], *given["hydra"]) if override_key(item) not in _OF_ONE_CALL]
    where = f"hydra.sweep.dir={quote(str(sweep_dir))}"
    os.chdir(hydra.runtime.cwd)
    command = [sys.executable, str(program), "-m", "--config-name", hydra.job.config_name, *overrides, where]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    start(main)
