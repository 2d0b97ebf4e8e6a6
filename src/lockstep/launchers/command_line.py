"""The command line of this program, and those of the same program for the jobs that it starts."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig

from lockstep.config.overrides import as_given, config_flags, is_for_each_run, quote


@dataclass(frozen=True)
class CommandLine:
    """The command line that Hydra has composed a config from; empty if there was none.

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
    def of(cls, config: DictConfig) -> Self:
        """Reads it from a config with Hydra's own part."""
        hydra = config.hydra
        return cls(
            flags=tuple(config_flags(hydra)),
            overrides=tuple(as_given(hydra.overrides.task)),
            hydra_overrides=tuple(filter(is_for_each_run, hydra.overrides.hydra)),
            choices=hydra.runtime.choices,
            gives_run_dir=any(override.startswith("hydra.run.dir=") for override in hydra.overrides.hydra),
        )

    def in_directory(self, directory: Path) -> list[str]:
        """Returns the command that starts this same run in a process of its own, in run mode and in that directory."""
        script = str(Path(sys.argv[0]).absolute())
        where = "hydra.mode=RUN", f"hydra.run.dir={quote(str(directory))}"
        return [sys.executable, script, *self.flags, *self.overrides, *self.hydra_overrides, *where]
