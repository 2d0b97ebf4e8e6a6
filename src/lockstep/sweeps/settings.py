"""hydra.launcher.KEY=VALUE: what a sweep is told about how to run its jobs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from omegaconf import OmegaConf

from lockstep.config.plan import visible_gpus
from lockstep.config.rules import Rule, integer, number, one_of
from lockstep.errors import config_error


@dataclass
class Settings:
    """Of any launcher."""

    RULES: ClassVar[Mapping[str, Rule]] = {
        "timeout": number(0.001).or_null(),
        "retries": integer(0),
        "on_failure": one_of("continue", "stop"),
    }

    timeout: Any = None  # seconds a job may take
    retries: int = 0  # times a failed job is tried again
    on_failure: str = "continue"  # or stop: hand out no more jobs
    same_code: bool = False  # refuse to go on with another commit than the sweep began with
    dry_run: bool = False  # print the jobs, run none

    def __post_init__(self) -> None:
        for name, rule in self.RULES.items():
            if not rule.test(getattr(self, name)):
                raise config_error(f"hydra.launcher.{name}", getattr(self, name), rule.words)


def _is_gpus(value: Any) -> bool:
    if isinstance(value, list) or OmegaConf.is_list(value):
        return 0 < len(value) == len({str(gpu) for gpu in value})
    return value == "all" or (isinstance(value, int) and not isinstance(value, bool))


@dataclass
class LocalSettings(Settings):
    """Hydra's schema of the launcher of this machine: it checks the types, and the rules the rest."""

    RULES: ClassVar[Mapping[str, Rule]] = {
        **Settings.RULES,
        "jobs": integer(1),
        "gpus": Rule("accepted is all, a number, or a list of GPUs", _is_gpus),
    }

    _target_: str = "hydra_plugins.lockstep_launcher.LockstepLauncher"
    gpus: Any = "all"  # which GPUs jobs are packed onto: all visible ones, a list of ids, or how many
    jobs: int = 1  # CPU jobs at once; more than one share the cores

    def gpu_slots(self) -> tuple[str, ...]:
        """As CUDA_VISIBLE_DEVICES names them: numbers, or the identifiers of GPUs or of their MIG parts."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        every = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.gpus == "all":
            return every
        chosen = every[: self.gpus] if isinstance(self.gpus, int) else tuple(map(str, self.gpus))
        fits = 0 < self.gpus <= len(every) if isinstance(self.gpus, int) else set(chosen) <= set(every)
        if not fits:
            words = f"accepted is all, a number up to {len(every)}, or a list from [{', '.join(every)}]"
            raise config_error("hydra.launcher.gpus", self.gpus, words)
        return chosen
