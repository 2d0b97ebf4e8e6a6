"""The command line of this program, and those of the same program for the processes that it starts, with the config that they
would compose."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, SCMode

from lockstep.config.overrides import as_given, config_flags, is_for_each_run, quote
from lockstep.config.plan import Plan


@dataclass(frozen=True)
class CommandLine:
    """The command line that Hydra has composed a config from; empty if there was none.

    flags: that name the config.
    overrides: of the run's own config.
    hydra_overrides: of Hydra's own config, those that are meant for each run too.
    choices: the option of each group.
    gives_run_dir: or was it made up by conf/hydra/default.yaml.
    config: that config, Hydra's own part with it.
    """

    flags: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    hydra_overrides: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    gives_run_dir: bool = False
    config: DictConfig | None = None

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
            config=config,
        )

    def in_directory(self, directory: Path) -> list[str]:
        """Returns the command that starts this same run in a process of its own, in run mode and in that directory."""
        script = str(Path(sys.argv[0]).absolute())
        return [sys.executable, script, *self.flags, *self.overrides, *self._hydra_overrides_in(directory)]

    def inherited_config(self, directory: Path, plan: Plan | None = None) -> str:
        """The config of the process that `in_directory` is for, as it reads it from a file, and the plan if that is made already;
        empty if it has to compose one."""
        if not (composed := _plain(self.config)):
            return ""
        composed["hydra"]["mode"], composed["hydra"]["run"]["dir"] = RunMode.RUN.name, str(directory)
        composed["hydra"]["overrides"]["hydra"] = self._hydra_overrides_in(directory)
        content = {"arguments": self.in_directory(directory)[1:], "config": composed}
        return json.dumps(content | {"plan": None if plan is None else asdict(plan)})

    def _hydra_overrides_in(self, directory: Path) -> list[str]:
        return [*self.hydra_overrides, "hydra.mode=RUN", f"hydra.run.dir={quote(str(directory))}"]


def _plain(config: DictConfig | None) -> dict[str, Any]:
    """Returns the config in plain containers; an empty one if its own part has structured configs, or values that JSON lacks."""
    if config is None:
        return {}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        content: Any = OmegaConf.to_container(own, resolve=False, structured_config_mode=SCMode.DICT_CONFIG)
        is_plain = json.loads(json.dumps(content)) == content
        hydra = OmegaConf.to_container(config.hydra, resolve=False, enum_to_str=True)
        return content | {"hydra": json.loads(json.dumps(hydra))} if is_plain else {}
    except (TypeError, ValueError):
        return {}
