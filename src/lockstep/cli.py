"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lockstep import console
from lockstep.config.hydra_errors import explain
from lockstep.config.overrides import is_run_dir_given, null_groups_left_out
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import register_resolvers, restarts, this_rank
from lockstep.launchers.rank import follow_parent
from lockstep.runs.resume import command_to_continue
from lockstep.runs.run import discard_made, will_make
from lockstep.runs.validation import validated

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
        main()
    except ConfigError as error:
        line = str(error)
    except Exception as error:
        if (explained := explain(error)) is None:
            raise
        line = explained
    else:
        return
    console.say(line)
    discard_made()
    sys.exit(2)


class ValidateConfig(Callback):
    """Called by Hydra before it makes the run's directory."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)
        try:
            validated(config)
            _reserve_directory(config)
        except (ConfigError, OmegaConfBaseException) as error:  # Hydra turns an exception here into a warning
            console.say(explain(error) or str(error))
            raise SystemExit(2) from None
        except Exception:  # a bug in the check itself: Hydra would only warn, and go on unvalidated
            traceback.print_exc()
            raise SystemExit(1) from None


def _reserve_directory(config: DictConfig) -> None:
    """A directory that was given is used as it is; one that was made up must belong to no other run."""
    directory = Path(str(OmegaConf.select(config, "hydra.run.dir"))).absolute()
    given = is_run_dir_given(config.hydra)
    rank = this_rank()
    is_first = rank is None or rank.global_rank == 0  # the status that another rank finds may be of this very run
    if is_first and not given and (directory / "status.json").exists() and not restarts():
        raise config_error("hydra.run.dir", directory, "belongs to an earlier run; give another one")
    if (rank is None or rank.started_by != "parent") and not (directory.exists() if given else restarts() > 0):
        will_make(directory)
