"""The process of a sweep's job, forked or spawned on this machine."""

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import quote
from lockstep.runs.saved import FILE, FOLDER, read_yaml


def run_program(arguments: Sequence[str], directory: Path) -> None:
    """Run `python PROGRAM resume=DIRECTORY [OVERRIDES]` in this process."""
    sys.argv[:] = arguments
    GlobalHydra.instance().clear()  # of the sweep, where the job is a fork of it
    setup_globals()
    HydraConfig.instance().cfg = saved_config(directory, arguments[2:])  # pyright: ignore[reportAttributeAccessIssue]
    runpy.run_path(arguments[0], run_name="__main__")


def saved_config(directory: Path, overrides: Sequence[str]) -> DictConfig:
    """Return the config that `resume=DIRECTORY [OVERRIDES]` composes, for which Hydra would take a fifth of a second."""
    saved, hydra = (read_yaml(directory / file) or {} for file in (FILE, f"{FOLDER}/hydra.yaml"))
    schema = OmegaConf.create({"hydra": HydraConf})
    OmegaConf.set_struct(schema.hydra, False)  # groups below hydra/ add keys
    config: Any = OmegaConf.merge(schema, saved, OmegaConf.from_dotlist([*overrides]), hydra)
    OmegaConf.update(config, "hydra.run.dir", str(directory))
    OmegaConf.update(config, "hydra.overrides.hydra", [f"hydra.run.dir={quote(str(directory))}"])
    OmegaConf.set_struct(config, True)
    return config


def run_composed(main: Callable[..., Any], config: Any) -> None:
    """Call a main function of Hydra's with a composed config, as Hydra's own launchers do. Raise what it raises."""
    context = HydraContext(None, Callbacks(config))  # pyright: ignore[reportArgumentType]  nothing asks for a loader
    _ = run_job(main, config, "hydra.run.dir", None, context).return_value
