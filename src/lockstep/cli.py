"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import atexit
import contextlib
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from lockstep import console
from lockstep.config.overrides import quote, split_flags, values_by_key
from lockstep.errors import ExitCode
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.rank import attach_to_parent, process_group
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.places import import_from_project

# What Hydra accepts for groups without an option; no data is an option, so that a run's name has a word for it.
_NULL_GROUPS = {"logger=null": "~logger", "callbacks=null": "~callbacks"}
_NULL_GROUPS |= {"datamodule=null": "datamodule=none", "~datamodule": "datamodule=none"}

register_resolvers()


def start(main: Callable[..., Any]) -> None:
    """Run a @hydra.main function; exit with one line and code 2 for an error in the config."""
    try:
        return _run(main)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        line, code = _explain_end(STOP_SIGNALS.raised or error)
        if line is None:
            raise
        console.say(line)
    if process_group() is not None and isinstance(code, int):
        sys.stderr.flush()
        os._exit(code)  # Python would wait for collectives that other ranks may never join
    sys.exit(code)


def _run(main: Callable[..., Any]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise instead of printing many lines and exiting with 1
    given = [_as_hydra_reads(item) for item in sys.argv[1:]]
    given.sort(key=lambda item: item not in ("-m", "--multirun"))  # Hydra misreads them between overrides
    STOP_SIGNALS.listen()
    console.survive_lost_output()
    import_from_project()
    attach_to_parent()
    if (arguments := _for_hydra(given)) is None:
        console.say("The run has finished already. With an override, trainer.max_epochs=20 say, it goes on.")
        return
    sys.argv[1:] = arguments
    if HydraConfig.initialized():  # in a sweep's job
        from lockstep.sweeps.job_process import run_composed

        run_composed(main, HydraConfig.instance().cfg)
    else:
        main()


def _as_hydra_reads(override: str) -> str:
    """Return an override in Hydra's grammar: a group without an option, and a value that has an `=`, such as the path of a
    sweep's job, which is quoted."""
    key, _, value = override.partition("=")
    is_plain = re.fullmatch(r"[\w.]+=[^'\",\[\]{}()]*=[^'\",\[\]{}()]*", override) and not Path(override).exists()
    return f"{key}={quote(value)}" if is_plain else _NULL_GROUPS.get(override, override)


def _for_hydra(given: list[str]) -> list[str] | None:
    """Return the arguments for Hydra; None if the run to resume has finished."""
    values = values_by_key(split_flags(given)[1])
    if values.get("resume", "null") != "null":
        from lockstep.runs.resume import command_to_continue  # only resumed runs need it

        return command_to_continue(given)
    rest = [item for item in given if not item.startswith("resume=")]  # resume=null, which is no key of the config
    if (source := values.get("fork", "null")) != "null":
        from lockstep.runs.fork import command_to_fork

        return command_to_fork(rest, source)
    return rest


def _explain_end(error: BaseException) -> tuple[str | None, int]:
    """Return a line that explains why this process ends, None for a bug, and the exit code. Runs and sweeps that have started
    report stop requests themselves."""
    if isinstance(error, Preempted):
        return f"Stopped by {signal.Signals(error.number).name}. The same command starts it.", ExitCode.PREEMPTED
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would interrupt the exit
        return "Interrupted.", 128 + signal.SIGINT
    from lockstep.config.hydra_errors import explain

    return explain(error) if isinstance(error, Exception) else None, ExitCode.REFUSED


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt the imported objects until the process ends: torch and Lightning create
    a million permanent objects, and each collection would traverse all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            atexit.register(gc.unfreeze)
            gc.enable()
