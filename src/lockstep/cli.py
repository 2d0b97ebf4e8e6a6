"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.config.overrides import null_groups_left_out, quote_equals, split_flags, values_by_key
from lockstep.errors import ConfigError, ExitCode
from lockstep.launchers.environment import SWEPT_KEYS, register_resolvers
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.rank import attach_to_parent, process_group
from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS, Preempted
from lockstep.places import import_from_project

LEAVING = 600.0  # seconds in which a process of a sweep's job is gone, once all is done: a logger may have something to upload

register_resolvers()


def start(main: Callable[[], Any]) -> None:
    """Runs a @hydra.main function; what is wrong in the config ends it with one line and exit code 2."""
    code: Any = ExitCode.FINISHED
    try:
        _start(main)
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else ExitCode.FAILED
        if process_group() is not None and isinstance(error, SystemExit) and isinstance(code, int):
            sys.stderr.flush()
            os._exit(code)  # Python would wait for collectives that other ranks may not come to
        raise
    finally:
        if SWEPT_KEYS in os.environ:
            _leave_in_time(code if isinstance(code, int) else bool(code))


def _leave_in_time(code: int) -> None:
    """Ends this process where a thread of the user's own code, or a function of atexit, never does: the sweep waits for it."""
    HEARTBEAT.start(LEAVING, Path("/dev/stderr"), lambda _: os._exit(code))
    HEARTBEAT.beat(f"after all was done (code {code})", LEAVING)


def _start(main: Callable[[], Any]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, where it would print many lines and exit with 1
    # -m between overrides, by which Hydra would be confused, is for all of them
    given = null_groups_left_out(sorted(map(quote_equals, sys.argv[1:]), key=lambda item: item not in ("-m", "--multirun")))
    try:
        STOP_SIGNALS.listen(signals={*SIGNALS} - {signal.SIGINT})  # who starts processes or trains takes Ctrl-C too
        console.survive_lost_output()
        import_from_project()
        attach_to_parent()
        if (arguments := _for_hydra(given)) is None:
            console.say("The run has finished already. With an override, trainer.max_epochs=20 say, it goes on.")
            return
        sys.argv[1:] = arguments
        main()
    except SystemExit:
        raise
    except BaseException as error:
        reason = STOP_SIGNALS.raised or error
        line, code = _explain_end(reason)
        if line is None:
            raise
    else:
        return
    console.say(line)
    sys.exit(code)


def _for_hydra(given: list[str]) -> list[str] | None:
    """Returns the arguments as Hydra is to read them; None where a run that is to go on has finished."""
    values = values_by_key(split_flags(given)[1])
    if values.get("resume", "null") != "null":
        from lockstep.runs.resume import command_to_continue  # most runs begin

        return command_to_continue(given)
    rest = [item for item in given if not item.startswith("resume=")]  # resume=null, which is no key of Hydra's
    if (source := values.get("fork", "null")) != "null":
        from lockstep.runs.fork import command_to_fork

        return command_to_fork(rest, source)
    return rest


def _explain_end(error: BaseException) -> tuple[str | None, int]:
    """Returns the line that says why this process ends, None for a bug, and the exit code. A run or a sweep that has begun
    explains itself why it was asked to stop."""
    if isinstance(error, Preempted):
        return f"Stopped by {signal.Signals(error.number).name}. The same command starts it.", ExitCode.PREEMPTED
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would break off how this process ends
        return "Interrupted.", 128 + signal.SIGINT
    if isinstance(error, ConfigError):
        return str(error), ExitCode.REFUSED
    from lockstep.config.hydra_errors import explain

    # what Hydra could not write, on a full disk say: a run's own errors do not come this far, the run records them
    where = getattr(error, "filename", None) or "hydra.run.dir"
    words = f"hydra.run.dir: {where} can't be made or written to ({getattr(error, 'strerror', None) or error})"
    unwritten = words if isinstance(error, OSError) else None
    return (explain(error) or unwritten) if isinstance(error, Exception) else None, ExitCode.REFUSED
