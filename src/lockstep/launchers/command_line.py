"""The command line of this program, and those of the same program for the processes that it starts."""

import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig

from lockstep.config.overrides import config_flags, is_of_each_run, quote
from lockstep.launchers.handed_config import hand_over


@dataclass(frozen=True)
class CommandLine:
    """What Hydra has composed a config from; empty for a config that was composed without a command line.

    flags: that name the config.
    overrides: of the run's own config.
    hydra_overrides: of Hydra's own config, those that are meant for each run too.
    choices: the option of each group.
    gives_run_dir: or was it made up by conf/hydra/default.yaml.
    composed: that config, pickled, Hydra's own part with it.
    """

    flags: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    hydra_overrides: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    gives_run_dir: bool = False
    composed: bytes = b""

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """With Hydra's own part, in which nothing is resolved yet."""
        hydra = config.hydra
        return cls(
            flags=tuple(config_flags(hydra)),
            overrides=tuple(hydra.overrides.task),
            hydra_overrides=tuple(filter(is_of_each_run, hydra.overrides.hydra)),
            choices=hydra.runtime.choices,
            gives_run_dir=any(override.startswith("hydra.run.dir=") for override in hydra.overrides.hydra),
            composed=pickle.dumps(config),
        )

    def in_directory(self, directory: Path) -> list[str]:
        """For a fresh process: this same run, in run mode and in that directory."""
        script = str(Path(sys.argv[0]).absolute())
        return [sys.executable, script, *self.flags, *self.overrides, *self._hydra_overrides_in(directory)]

    def handed_to(self, directory: Path) -> dict[str, str]:
        """For the environment of the process that `in_directory` is for: the config."""
        return hand_over(self.composed, self.in_directory(directory), directory, self._hydra_overrides_in(directory))

    def _hydra_overrides_in(self, directory: Path) -> list[str]:
        return [*self.hydra_overrides, "hydra.mode=RUN", f"hydra.run.dir={quote(str(directory))}"]


def command_with(*overrides: str) -> list[str]:
    """The command line of this program and more overrides, for a fresh process."""
    return [sys.executable, *sys.argv, *overrides]
