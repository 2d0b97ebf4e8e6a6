"""hydra.launcher.KEY=VALUE: how a sweep runs its jobs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from omegaconf import OmegaConf

from lockstep.config.plan import visible_gpus
from lockstep.config.rules import integer, number
from lockstep.errors import config_error


@dataclass
class Keys:
    """The keys of one group of Hydra's, each with the rule in its annotation."""

    GROUP: ClassVar[str]

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        """Return those of a composed group. Raise ConfigError for an unknown key, and for what a rule does not accept."""
        known, plain = [one.name for one in fields(cls)], dict[str, Any]()
        for name, value in values.items():
            plain[name] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        plain.pop("_target_", None)
        for name in plain.keys() - known:
            raise config_error(f"{cls.GROUP}.{name}", plain[name], f"no such key; use {', '.join(known)}")
        return cls(**plain)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            for rule in getattr(kind, "__metadata__", ()):
                if not rule.test(value := getattr(self, name)):
                    raise config_error(f"{self.GROUP}.{name}", value, rule.words)


@dataclass
class Settings(Keys):
    """The settings that any launcher has."""

    GROUP: ClassVar[str] = "hydra.launcher"

    timeout: Annotated[Any, number(0.001).or_null()] = None  # seconds a job may take
    retries: Annotated[int, integer(0)] = 0  # times a failed job is tried again
    dry_run: bool = False  # print the jobs, run none


@dataclass
class LocalSettings(Settings):
    """Hydra's schema of the launcher of this machine: it checks the types, and the rules the rest."""

    _target_: str = "hydra_plugins.lockstep_launcher.LockstepLauncher"
    jobs_per_gpu: Annotated[int, integer(1)] = 1  # jobs of one GPU that have it together
    jobs: Annotated[int, integer(1)] = 1  # CPU jobs at once; more than one share the cores

    def gpu_slots(self) -> tuple[str, ...]:
        """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, numbers, or the identifiers of GPUs or of their MIG parts.
        Where several jobs share a GPU, the name has a slot's number behind a #."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        gpus = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.jobs_per_gpu == 1:
            return gpus
        return tuple(f"{gpu}#{number}" for number in range(self.jobs_per_gpu) for gpu in gpus)
