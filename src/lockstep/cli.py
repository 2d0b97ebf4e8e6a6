"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import os
import sys
from collections.abc import Callable
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from lockstep import console
from lockstep.config.hydra_errors import explain
from lockstep.config.overrides import null_groups_left_out
from lockstep.errors import ConfigError, ExitCode
from lockstep.launchers.environment import register_resolvers
from lockstep.launchers.rank import follow_parent
from lockstep.runs.directory import OWN_DIRECTORY
from lockstep.runs.resume import command_to_continue
from lockstep.runs.validation import Prepared, refusing

register_resolvers()


def start(main: Callable[[], Any]) -> None:
    """Runs a @hydra.main function; what is wrong in the config ends it with one line and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, where it would print many lines and exit with 1
    console.survive_lost_output()
    follow_parent()
    try:
        arguments = command_to_continue(null_groups_left_out(sys.argv[1:]))
        if arguments is None:
            console.say("The run has finished already. With an override, trainer.max_epochs=20 say, it goes on.")
            return
        sys.argv[1:] = arguments
        _compose_once()
        main()
    except ConfigError as error:
        line = str(error)
    except Exception as error:
        line = explain(error) or _unwritten(error)
        if line is None:
            raise
    else:
        return
    console.say(line)
    OWN_DIRECTORY.give_back()
    sys.exit(ExitCode.REFUSED)


def _compose_once() -> None:
    """Hydra composes everything a first time only to read hydra.mode (Hydra.get_mode in hydra/_internal/hydra.py; there is no
    seam before it), for half a second. The ranks and jobs that are started from here are told it on their command line."""
    if "hydra.mode=RUN" in sys.argv:
        Hydra.get_mode = lambda *_, **__: RunMode.RUN


def _unwritten(error: Exception) -> str | None:
    """What Hydra could not write, on a full disk say. A run's own errors do not come this far: they are its end."""
    return f"{error.filename or 'hydra.run.dir'}: {error.strerror or error}" if isinstance(error, OSError) else None


class ValidateConfig(Callback):
    """Called by Hydra before it makes the run's directory or writes into it: what is refused here has changed nothing."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)  # which ${hydra:...} asks
        with refusing():
            Prepared.prepare(config)
