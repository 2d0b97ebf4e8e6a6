"""A config that a process inherits from the one that has composed it: the ranks of a run from their parent, a job from its sweep.

It is a file of the run's directory, of plain data, and is run as Hydra's own launchers run their jobs.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import run_job
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.atomic_files import read_json, replace_text
from lockstep.config.overrides import override_key, unquote
from lockstep.config.plan import Plan

FILE = ".inherited_config.json"
MADE: dict[tuple[str, ...], DictConfig] = {}  # of a command, by who has forked the process that runs it


@contextlib.contextmanager
def inherited_config(directory: Path, content: str) -> Iterator[None]:
    """Within, the processes that are started with this directory find a config there; without content they compose their own."""
    file = directory / FILE
    file.unlink(missing_ok=True)
    try:
        with contextlib.suppress(OSError):  # on a full disk they compose their own, too
            if content:
                replace_text(file, content)
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder or the disk may be gone: that is the run's to report
            file.unlink()


def read_inherited_config(arguments: Sequence[str]) -> DictConfig | None:
    """Returns the config in the directory that `python ARGUMENTS` names last; None if there is none, or it is for another
    command."""
    if (made := MADE.pop(tuple(arguments), None)) is None and isinstance(content := read_content(arguments).get("config"), dict):
        return make_config(content)
    return made


def read_inherited_plan(arguments: Sequence[str]) -> Plan | None:
    """Returns the plan that the parent of this rank has made; None where it has left none."""
    content = read_content(arguments).get("plan") or {}
    plan: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return Plan(**plan) if plan else None


def read_content(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns what is in the file; nothing if there is none, or it is for another command."""
    key, _, directory = arguments[-1].partition("=")
    content = read_json(Path(unquote(directory)) / FILE) if override_key(key) == "hydra.run.dir" else None
    return content if content is not None and content.get("arguments") == list(arguments) else {}


def make_config(content: dict[str, Any]) -> DictConfig:
    """Hydra requires its own part to be of its own type."""
    config = OmegaConf.create({**content, "hydra": OmegaConf.structured(HydraConf)})
    with flag_override(config.hydra, "struct", False):  # option groups add keys to it
        config.hydra.merge_with(content["hydra"])
        del config.hydra["defaults"]
    OmegaConf.set_struct(config, True)
    return config


def run_task(main: Callable[[], Any], config: DictConfig) -> None:
    """Runs the function under @hydra.main with a config that is composed already, as Hydra.run does after composing it."""
    hydra = Hydra.create_main_hydra2(task_name=config.hydra.job.name, config_search_path=ConfigSearchPathImpl())
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
    name = config.hydra.job.config_name
    try:
        context.callbacks.on_run_start(config=config, config_name=name)
        returned = run_job(inspect.unwrap(main), config, "hydra.run.dir", job_subdir_key=None, hydra_context=context)
        context.callbacks.on_run_end(config=config, config_name=name, job_return=returned)
        _ = returned.return_value  # raises what the function has raised
    finally:
        GlobalHydra.instance().clear()
