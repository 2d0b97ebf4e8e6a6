"""A sweep's state, and its continuation.

python scripts/sweep.py status SWEEP_DIR         # a table of its jobs, while it runs or afterwards
python scripts/sweep.py watch SWEEP_DIR          # the same, live, until the sweep has ended; ends with its exit code
python scripts/sweep.py resume SWEEP_DIR         # the same sweep once more, for what has not finished
python scripts/sweep.py cancel SWEEP_DIR         # takes its jobs out of a cluster's queue, running ones too; resume continues
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError
from yaml import YAMLError

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import override_key, quote
from lockstep.errors import ExitCode, config_error
from lockstep.launchers.launch import POLL
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.places import project
from lockstep.runs.directory import SWEEP_FILE
from lockstep.sweeps.jobs import FAILED
from lockstep.sweeps.sweep import sweep_command
from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import LiveTable, look_at, print_table, queue

_OF_ONE_CALL = ("hydra.mode", "hydra.sweep.dir")
QUEUE_INTERVAL = 10.0  # seconds at least between two questions to a cluster's queue


def main() -> None:
    parser = script_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("status", "watch", "resume", "cancel"):
        commands.add_parser(name).add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    commands.choices["resume"].add_argument("--program", type=Path, default=project() / "train.py", metavar="FILE")
    options = commands.choices["watch"]
    options.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    options.add_argument("--once", action="store_true", help="one look")
    arguments = parser.parse_args()
    if arguments.what == "watch":
        sys.exit(watch(arguments.sweep_dir, arguments.interval, arguments.once))
    if arguments.what == "status":
        print_table(sweep_jobs := look_at(arguments.sweep_dir), advice(sweep_jobs))
        return
    sweep_jobs = SweepJobs(arguments.sweep_dir)
    if not sweep_jobs.jobs:
        raise config_error("SWEEP_DIR", arguments.sweep_dir, "names no jobs; use the directory of a sweep")
    if arguments.what == "cancel":
        console.say(f"{queue().cancel(sweep_jobs)} job(s) cancelled")
    else:
        sys.exit(resume(arguments.sweep_dir.absolute(), arguments.program.absolute()))


def watch(sweep_dir: Path, interval: float, once: bool = False) -> int:
    """Shows the sweep every `interval` seconds until it has ended; returns its exit code, or 0 where it was left before."""
    if not 0.1 <= interval <= 3600:
        raise config_error("--interval", interval, "use a number of seconds from 0.1 to 3600")
    table = LiveTable()
    try:
        while not has_ended(sweep_jobs := look_at(sweep_dir)) and not once:
            table.show(sweep_jobs, advice(sweep_jobs))
            time.sleep(max(interval, QUEUE_INTERVAL) if sweep_jobs.in_queue() else interval)
    except KeyboardInterrupt:
        return ExitCode.FINISHED
    finally:
        table.close()
    print_table(sweep_jobs, advice(sweep_jobs))
    return sweep_jobs.exit_code if has_ended(sweep_jobs) else ExitCode.FINISHED


def has_ended(sweep_jobs: SweepJobs) -> bool:
    """Return whether neither a process nor a cluster has any of its jobs."""
    return not sweep_jobs.is_running and not sweep_jobs.in_queue()


def advice(sweep_jobs: SweepJobs) -> str:
    """Return what a person can do about the sweep; nothing where it runs, or all is well."""
    if sweep_jobs.is_running or sweep_jobs.exit_code == ExitCode.FINISHED:
        return ""
    command = sweep_command("resume", sweep_jobs.directory)
    if sweep_jobs.in_queue():
        return f"No sweep process; a cluster has jobs in its queue. To have what follows them done: {command}"
    has_failed = sweep_jobs.exit_code == ExitCode.FAILED and sweep_jobs.counts[FAILED]
    return f"No sweep process. {'Try again what failed' if has_failed else 'Start it again'}: {command}"


def resume(sweep_dir: Path, program: Path) -> int:
    """Calls the program again as it was called last for the directory, from the same folder."""
    try:
        hydra: Any = OmegaConf.load(sweep_dir / SWEEP_FILE).hydra
    except (OSError, YAMLError, ConfigAttributeError) as error:
        words = f"{SWEEP_FILE} can't be read ({error}); give the sweep's own command again"
        raise config_error("SWEEP_DIR", sweep_dir, words) from error
    if hydra.job.name != program.stem:
        raise config_error("SWEEP_DIR", sweep_dir, f"was started by {hydra.job.name}.py; give --program and where that is")
    given: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
    overrides = [item for item in (*given["task"], *given["hydra"]) if override_key(item) not in _OF_ONE_CALL]
    where = f"hydra.sweep.dir={quote(str(sweep_dir))}"
    command = [sys.executable, str(program), "-m", *_config_flags(hydra, program), *overrides, where]
    with STOP_SIGNALS.deferring() as received:
        code = _called(command, hydra.runtime.cwd, received)
    return code if code >= 0 else 128 - code  # killed by a signal, as a shell counts it


def _config_flags(hydra: Any, program: Path) -> list[str]:
    """The flags that name the config, less the folder that the program takes by itself."""
    flags, own = ["--config-name", hydra.job.config_name], program.resolve().with_name("conf")
    for source in hydra.runtime.config_sources:
        if source.provider == "main" and Path(source.path).resolve() != own:
            flags += ["--config-path", source.path]
        elif source.provider == "command-line":
            flags += ["--config-dir", source.path]
    return flags


def _called(command: list[str], cwd: str, received: list[int]) -> int:
    """The exit code of a sweep, to which requests to stop are passed on; Ctrl-C reaches it by itself, from the terminal."""
    with subprocess.Popen(command, cwd=cwd) as sweep:
        passed_on = 0
        while (code := sweep.poll()) is None:
            for number in received[passed_on:]:
                if number != signal.SIGINT:
                    sweep.send_signal(number)
            passed_on = len(received)
            time.sleep(POLL)
    return code


if __name__ == "__main__":
    start(main)
