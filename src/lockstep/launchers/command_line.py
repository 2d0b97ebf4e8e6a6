"""Command lines of this same program, for the processes that it starts."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lockstep.config.overrides import config_flags, of_each_run, quote


def command_of_a_rank(cfg: DictConfig) -> list[str]:
    """The command line of this run, for a fresh process, in the directory that exists already."""
    hydra = HydraConfig.get()
    return command_of([*hydra.overrides.task, *of_each_run(hydra)], Path(cfg.run_dir))


def command_of(overrides: Sequence[str], directory: Path) -> list[str]:
    """The command line of one run of this program, in run mode and in a directory of its own."""
    script = str(Path(sys.argv[0]).absolute())
    where = f"hydra.run.dir={quote(str(directory))}"
    return [sys.executable, script, *config_flags(HydraConfig.get()), *overrides, "hydra.mode=RUN", where]


def command_with(*overrides: str) -> list[str]:
    """The command line of this program and more overrides, for a fresh process."""
    return [sys.executable, *sys.argv, *overrides]
