"""The process of a sweep's job, forked or spawned on this machine."""

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import quote
from lockstep.runs.saved import FILE, read_yaml


def run_program(arguments: Sequence[str], directory: Path, hydra: DictConfig | None) -> None:
    """Run `python PROGRAM resume=DIRECTORY [OVERRIDES]` in this process. `hydra`: Hydra's part of the config."""
    sys.argv[:] = arguments
    GlobalHydra.instance().clear()  # of the sweep, where the job is a fork of it
    setup_globals()
    if hydra is not None:
        config: Any = HydraConfig.instance()
        config.cfg = saved_config(directory, arguments[2:], hydra)
    runpy.run_path(arguments[0], run_name="__main__")


def saved_config(directory: Path, overrides: Sequence[str], hydra: DictConfig) -> DictConfig:
    """Return the config that `resume=DIRECTORY [OVERRIDES]` composes, for which Hydra would take a fifth of a second."""
    saved: Any = read_yaml(directory / FILE)
    config: Any = OmegaConf.unsafe_merge(hydra, saved, OmegaConf.from_dotlist([*overrides]))
    config.hydra.run.dir = str(directory)
    config.hydra.overrides.hydra = [f"hydra.run.dir={quote(str(directory))}"]
    OmegaConf.set_struct(config, True)
    return config


def run_composed(main: Callable[..., Any], config: Any) -> None:
    """Call a main function of Hydra's with a composed config, as Hydra's own launchers do. Raise what it raises."""
    context = HydraContext(None, Callbacks(config))  # pyright: ignore[reportArgumentType]  nothing asks for a loader
    _ = run_job(main, config, "hydra.run.dir", None, context).return_value
