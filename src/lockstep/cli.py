"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import atexit
import contextlib
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from lockstep import console
from lockstep.config.overrides import is_group, quote, split_flags, values_by_key
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.rank import attach_to_parent, leave
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.places import import_from_project
from lockstep.runs.validation import refusing

register_resolvers()


def start(main: Callable[..., Any]) -> None:
    """Run a @hydra.main function; exit with one line for an error in the config (code 2) or a stop request (code 75)."""
    try:
        with refusing():
            _run(main)
    except SystemExit as left:
        leave(left.code)


def _run(main: Callable[..., Any]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise instead of printing many lines and exiting with 1
    STOP_SIGNALS.listen()
    console.survive_lost_output()
    import_from_project()
    attach_to_parent()
    given = [_as_hydra_reads(item) for item in sys.argv[1:]]
    given.sort(key=lambda item: item not in ("-m", "--multirun"))  # Hydra misreads them between overrides
    values = values_by_key(split_flags(given)[1])
    if "resume" in values:
        from lockstep.runs.resume import command_to_continue  # only resumed runs need it

        if (given := command_to_continue(given)) is None:
            console.say("The run has finished already. To train longer, give a larger trainer.max_epochs.")
            return
    elif (source := values.get("fork", "null")) != "null":
        from lockstep.runs.fork import command_to_fork

        given = command_to_fork(given, source)
    sys.argv[:] = [str(Path(sys.argv[0]).absolute()), *given]  # absolute, because Hydra may change the working directory
    if HydraConfig.initialized():  # in a sweep's job
        from lockstep.sweeps.local import run_composed

        run_composed(main, HydraConfig.instance().cfg)
    else:
        main()


def _as_hydra_reads(override: str) -> str:
    """Return an override in Hydra's grammar: a group without an option, and a value that has an `=`, such as the path of a
    sweep's job, which is quoted."""
    key, _, value = override.partition("=")
    if value == "null" and is_group(key):
        return "datamodule=none" if key == "datamodule" else f"~{key}"  # no data is an option, to be named in a run's directory
    is_plain = re.fullmatch(r"[\w.]+=[^'\",\[\]{}()]*=[^'\",\[\]{}()]*", override)
    return f"{key}={quote(value)}" if is_plain else override


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage in the block, nor among its objects later: torch and Lightning create a million permanent ones, which
    each collection would traverse."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)
