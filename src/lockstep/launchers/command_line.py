"""The command line of this program, and those of the same program for the processes that it starts.

Beside its command such a process is handed the config that it would compose, for half a second, by its environment.
"""

import base64
import os
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from lockstep.config.overrides import config_flags, is_of_each_run, quote
from lockstep.launchers.environment import HANDED_CONFIG

_LONGEST = 2**16  # characters of a config that is handed over; Linux takes twice as many in one variable, see execve(2)


@dataclass(frozen=True)
class CommandLine:
    """What Hydra has composed a config from; empty for a config that was composed without a command line.

    flags: that name the config.
    overrides: of the run's own config.
    hydra_overrides: of Hydra's own config, those that are meant for each run too.
    choices: the option of each group.
    gives_run_dir: or was it made up by conf/hydra/default.yaml.
    composed: that config, pickled, Hydra's own part with it; nothing where that can't be.
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
            composed=_pickled(config),
        )

    def in_directory(self, directory: Path) -> list[str]:
        """For a fresh process: this same run, in run mode and in that directory."""
        script = str(Path(sys.argv[0]).absolute())
        return [sys.executable, script, *self.flags, *self.overrides, *self._hydra_overrides_in(directory)]

    def handed_to(self, directory: Path) -> dict[str, str]:
        """For the environment of the process that `in_directory` is for: its config, unless that is too long."""
        if not self.composed:
            return {}
        config = pickle.loads(self.composed)
        with read_write(config.hydra):
            config.hydra.mode = RunMode.RUN
            config.hydra.run.dir = str(directory)
            config.hydra.overrides.hydra = self._hydra_overrides_in(directory)
        pickled = pickle.dumps((self.in_directory(directory)[1:], config))
        content = base64.b85encode(zlib.compress(pickled)).decode()
        return {HANDED_CONFIG: content} if len(content) <= _LONGEST else {}

    def _hydra_overrides_in(self, directory: Path) -> list[str]:
        return [*self.hydra_overrides, "hydra.mode=RUN", f"hydra.run.dir={quote(str(directory))}"]


def _pickled(config: DictConfig) -> bytes:
    """A structured config may have a class that can't be found by its name, which Hydra does not mind."""
    try:
        return pickle.dumps(config)
    except Exception:
        return b""


def take_handed(arguments: Sequence[str]) -> DictConfig | None:
    """The config that was handed to this process; None where that is none, or not what `python ARGUMENTS` composes."""
    content = os.environ.pop(HANDED_CONFIG, None)
    if content is None:
        return None
    its_arguments, config = pickle.loads(zlib.decompress(base64.b85decode(content)))
    if its_arguments != list(arguments):
        return None
    OmegaConf.clear_cache(config)  # of resolvers, whose values are this process's
    return config


def command_with(*overrides: str) -> list[str]:
    """The command line of this program and more overrides, for a fresh process."""
    return [sys.executable, *sys.argv, *overrides]
