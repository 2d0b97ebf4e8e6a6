"""The command line of this program, and those of the same program for the processes that it starts."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lockstep.config.overrides import config_flags, is_of_each_run, quote


@dataclass(frozen=True)
class CommandLine:
    """What Hydra has composed a config from; empty for a config that was composed without a command line.

    flags: that name the config.
    overrides: of the run's own config.
    hydra_overrides: of Hydra's own config, those that are meant for each run too.
    choices: the option of each group.
    gives_run_dir: or was it made up by conf/hydra/default.yaml.
    """

    flags: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    hydra_overrides: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    gives_run_dir: bool = False

    @classmethod
    def of(cls, hydra: Any) -> Self:
        """`hydra` is Hydra's own part of a composed config."""
        return cls(
            flags=tuple(config_flags(hydra)),
            overrides=tuple(hydra.overrides.task),
            hydra_overrides=tuple(filter(is_of_each_run, hydra.overrides.hydra)),
            choices=hydra.runtime.choices,
            gives_run_dir=any(override.startswith("hydra.run.dir=") for override in hydra.overrides.hydra),
        )

    def in_directory(self, directory: Path) -> list[str]:
        """For a fresh process: this same run, in run mode and in that directory."""
        script = str(Path(sys.argv[0]).absolute())
        where = f"hydra.run.dir={quote(str(directory))}"
        return [sys.executable, script, *self.flags, *self.overrides, *self.hydra_overrides, "hydra.mode=RUN", where]


def command_with(*overrides: str) -> list[str]:
    """The command line of this program and more overrides, for a fresh process."""
    return [sys.executable, *sys.argv, *overrides]
