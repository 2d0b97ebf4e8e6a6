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

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.errors import ExitCode, config_error
from lockstep.launchers.launch import POLL
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.places import project
from lockstep.sweeps.executor import queues
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.states import FAILED
from lockstep.sweeps.sweep import sweep_command
from lockstep.sweeps.table import LiveTable, print_table
from lockstep.sweeps.view import SweepView, look_at

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
        print_table(view := look_at(arguments.sweep_dir), advice(view))
        return
    manifest = Manifest(arguments.sweep_dir)
    if not manifest.jobs:
        raise config_error("SWEEP_DIR", arguments.sweep_dir, "names no jobs; accepted is the directory of a sweep")
    if arguments.what == "cancel":
        console.say(f"{sum(queue.cancel(manifest) for queue in queues())} job(s) cancelled")
    else:
        sys.exit(resume(manifest, arguments.sweep_dir.absolute(), arguments.program.absolute()))


def watch(sweep_dir: Path, interval: float, once: bool = False) -> int:
    """Shows the sweep every `interval` seconds until it has ended; returns its exit code, or 0 where it was left before."""
    if not 0.1 <= interval <= 3600:
        raise config_error("--interval", interval, "accepted is a number of seconds from 0.1 to 3600")
    table = LiveTable()
    try:
        while not has_ended(view := look_at(sweep_dir)) and not once:
            table.show(view, advice(view))
            time.sleep(interval if view.is_held else max(interval, QUEUE_INTERVAL))
    except KeyboardInterrupt:
        return ExitCode.FINISHED
    finally:
        table.close()
    print_table(view, advice(view))
    return view.exit_code if has_ended(view) else ExitCode.FINISHED


def has_ended(view: SweepView) -> bool:
    """Has neither a process nor a cluster any of its jobs?"""
    return not view.is_held and not view.manifest.in_queue()


def advice(view: SweepView) -> str:
    """What a person can do about the sweep; nothing where it runs, or all is well."""
    if view.is_held or view.exit_code == ExitCode.FINISHED:
        return ""
    command = sweep_command("resume", view.manifest.directory)
    if view.manifest.in_queue():
        return f"No sweep process; a cluster has jobs in its queue. To have what follows them done: {command}"
    has_failed = view.exit_code == ExitCode.FAILED and view.counts[FAILED]
    return f"No sweep process. {'Try again what failed' if has_failed else 'Start it again'}: {command}"


def resume(manifest: Manifest, sweep_dir: Path, program: Path) -> int:
    """Calls the program again as it was called for the directory, from the same folder; the worst of the exit codes."""
    if not manifest.calls:
        raise config_error("SWEEP_DIR", sweep_dir, "does not say how it was started; accepted is its own command")
    if other := next((call["program"] for call in manifest.calls if call["program"] != program.name), None):
        raise config_error("SWEEP_DIR", sweep_dir, f"was started by {other}; accepted is --program and where that is")
    here = (Path.cwd(), program.parent)
    if manifest.cwd is not None and Path(manifest.cwd).resolve() not in [folder.resolve() for folder in here]:
        raise config_error("SWEEP_DIR", sweep_dir, f"was started in {manifest.cwd}; accepted is to resume it from there")
    codes = []
    commands = [[sys.executable, str(program), *_again(call, sweep_dir)] for call in manifest.calls]
    with STOP_SIGNALS.deferring() as received:
        for command in commands:
            codes.append(_called(command, manifest.cwd or ".", received))
            if codes[-1] == ExitCode.PREEMPTED or received:
                break
    return max(code if code >= 0 else 128 - code for code in codes)  # killed by a signal, as a shell counts it


def _again(call: dict[str, Any], sweep_dir: Path) -> list[str]:
    """The arguments of a call."""
    return ["-m", *call["flags"], *call["overrides"], f"hydra.sweep.dir={quote(str(sweep_dir))}"]


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
