"""A sweep's state, and its continuation.

python scripts/sweep.py status SWEEP_DIR         # a table of its jobs, while it runs or afterwards
python scripts/sweep.py watch SWEEP_DIR          # the same, live, until the sweep has ended; ends with its exit code
python scripts/sweep.py watch SWEEP_DIR --web    # as a page on this machine, with the curves
python scripts/sweep.py resume SWEEP_DIR         # the same sweep once more, for what has not finished
python scripts/sweep.py cancel SWEEP_DIR         # takes its jobs out of SLURM's queue, those that run too; resume continues them
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.config.read import Given, check_flags, check_overrides
from lockstep.errors import ExitCode, config_error
from lockstep.extras.slurm_queue import launcher as slurm
from lockstep.extras.watch.watch import watch
from lockstep.launchers.slurm import Unanswered
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.launchers.supervisor import POLL
from lockstep.sweeps.live_table import COLUMNS, rows_of
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.view import Views, Watched, as_it_stands

PROGRAM = Path(__file__).resolve().parents[1] / "train.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("status", "watch", "resume", "cancel"):
        commands.add_parser(name).add_argument("sweep_dir", type=Path, metavar="SWEEP_DIR")
    allowed = "trust what the directory says: modules and classes, keys of overrides"
    commands.choices["resume"].add_argument("--allow", nargs="+", default=[], metavar="NAME", help=allowed)
    commands.choices["resume"].add_argument("--program", type=Path, default=PROGRAM, metavar="FILE", help="default: train.py")
    options = commands.choices["watch"]
    options.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    options.add_argument("--once", action="store_true", help="one look")
    options.add_argument("--web", action="store_true", help="as a page for a browser, until Ctrl-C")
    options.add_argument("--port", type=int, default=8765, help="of the page (8765); 0: any that is free")
    arguments = parser.parse_args()
    if arguments.what == "watch":
        sys.exit(watched(arguments))
    manifest = Manifest(arguments.sweep_dir)
    if not manifest.jobs:
        raise config_error("SWEEP_DIR", arguments.sweep_dir, "names no jobs; accepted is the directory of a sweep")
    if arguments.what == "status":
        if manifest.recovered:
            console.say(f"{manifest.path} does not know {manifest.recovered} of the jobs: read from their directories")
        console.show_table(rows_of(Views().of(as_it_stands(manifest))), COLUMNS)
        return
    if arguments.what == "cancel":
        cancel(manifest)
        return
    sys.exit(resume(manifest, arguments.sweep_dir.absolute(), Given(allow=arguments.allow), arguments.program.absolute()))


def watched(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.interval <= 3600:
        raise config_error("--interval", arguments.interval, "accepted is a number of seconds from 0.1 to 3600")
    if not arguments.web:
        return watch(Watched(arguments.sweep_dir), arguments.interval, once=arguments.once)
    from lockstep.extras.watch.live_page import serve  # a server, and TensorBoard's reader

    serve(Watched(arguments.sweep_dir), arguments.port)
    return ExitCode.FINISHED


def resume(manifest: Manifest, sweep_dir: Path, given: Given, program: Path) -> int:
    """Calls the program again as it was called for the directory, from the same folder; the worst of the exit codes. What the
    directory says is data: see lockstep.config.read."""
    if not manifest.calls:
        raise config_error("SWEEP_DIR", sweep_dir, "does not say how it was started; accepted is its own command")
    if other := next((call["program"] for call in manifest.calls if call["program"] != program.name), None):
        raise config_error("SWEEP_DIR", sweep_dir, f"was started by {other}; accepted is --program and where that is")
    here = (Path.cwd(), program.parent)
    if manifest.cwd is not None and Path(manifest.cwd).resolve() not in [folder.resolve() for folder in here]:
        raise config_error("SWEEP_DIR", sweep_dir, f"was started in {manifest.cwd}; accepted is to resume it from there")
    codes = []
    commands = [[sys.executable, str(program), *_again(call, sweep_dir, given)] for call in manifest.calls]
    with STOP_SIGNALS.noted() as received:
        for command in commands:
            codes.append(_called(command, manifest.cwd or ".", received))
            if codes[-1] == ExitCode.PREEMPTED or received:
                break
    return max(code if code >= 0 else 128 - code for code in codes)  # killed by a signal, as a shell counts it


def _again(call: dict[str, Any], sweep_dir: Path, given: Given) -> list[str]:
    """The arguments of a call. Raises ConfigError for what a directory may not say."""
    flags, overrides = call["flags"], call["overrides"]
    check_flags(sweep_dir, flags, given)
    check_overrides(sweep_dir, overrides, flags, given)
    return ["-m", *flags, *overrides, f"hydra.sweep.dir={quote(str(sweep_dir))}", given.override]


def cancel(manifest: Manifest) -> None:
    try:
        count = slurm.cancel(manifest)
    except Unanswered as error:
        raise config_error("SWEEP_DIR", manifest.directory, f"{error}; a sweep on this machine is ended by Ctrl-C") from error
    console.say(f"{count} job(s) cancelled")


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
