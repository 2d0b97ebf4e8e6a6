"""The command line: Hydra's errors as one line, exit codes, and validation before any directory exists."""

import os
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from lockstep import console
from lockstep.config.overrides import is_run_dir_given
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import register_resolvers, restarts, this_rank
from lockstep.launchers.rank import follow_parent
from lockstep.runs.resume import command_to_continue
from lockstep.runs.run import discard_made, will_make
from lockstep.runs.validation import validated

register_resolvers()


def start(main: Callable[[], Any]) -> None:
    """Runs a @hydra.main function; what is wrong in the config ends it with one line and exit code 2."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises instead of printing and exiting with 1
    console.survive_lost_output()
    follow_parent()
    try:
        arguments = command_to_continue(sys.argv[1:])
        if arguments is None:
            console.say("The run has finished already. With an override, trainer.max_epochs=20 say, it goes on.")
            return
        sys.argv[1:] = arguments
        main()
    except ConfigError as error:
        line = str(error)
    except (HydraException, OmegaConfBaseException) as error:
        line = explain(error)
    except ValueError as error:
        if not _is_from_hydra(error):
            raise
        line = f"{' '.join(sys.argv[1:])}: not a valid override ({error})"
    else:
        return
    console.say(line)
    discard_made()
    sys.exit(2)


def _is_from_hydra(error: Exception) -> bool:
    """Was it Hydra that raised: `model=5` is a bare ValueError there."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").startswith("hydra.")


def explain(error: Exception) -> str:
    """One line for an override that Hydra could not apply, with what it would have accepted."""
    cause = error.__cause__ or error
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not a valid override ({error})"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        return f"{group}={option}: accepted is one of {', '.join(error.options)}"
    key, parent = getattr(cause, "full_key", None), getattr(cause, "parent_node", None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and key and isinstance(parent, DictConfig):
        return _unknown_key(str(key), [str(name) for name in parent if name != "hydra"])
    return str(error)


def _unknown_key(key: str, siblings: list[str]) -> str:
    group, _, name = key.rpartition(".")
    close = get_close_matches(name, siblings, n=1)
    guess = f"did you mean {f'{group}.' if group else ''}{close[0]}? " if close else ""
    override = next((item for item in sys.argv[1:] if item.startswith((f"{key}=", f"{key}."))), key)
    return f"{override}: unknown key; {guess}accepted are {', '.join(siblings)}; +{override} adds a new one"


class ValidateConfig(Callback):
    """Called by Hydra before it makes the run's directory."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)
        try:
            validated(config)
            _reserve_directory(config)
        except (ConfigError, OmegaConfBaseException) as error:  # Hydra turns an exception here into a warning
            console.say(str(error))
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
