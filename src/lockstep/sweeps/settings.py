"""hydra.launcher.KEY=VALUE: what a sweep is told about how to run its jobs."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from omegaconf import OmegaConf

from lockstep.config.plan import Plan, visible_gpus
from lockstep.config.rules import TEXT, Rule, above, integer, number, one_of
from lockstep.errors import config_error

OF_SBATCH = ("partition", "account", "time", "mem")  # keys that are its flags too


@dataclass
class Keys:
    """The keys of one group of Hydra's, each with the rule in its annotation."""

    GROUP: ClassVar[str]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Raises ConfigError for a key that there is not, and for what a rule does not accept."""
        known = [one.name for one in fields(cls)]
        for name in values.keys() - known:
            raise config_error(f"{cls.GROUP}.{name}", values[name], f"no such key; accepted are {', '.join(known)}")
        return cls(**values)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            for rule in getattr(kind, "__metadata__", ()):
                if not rule.test(value := getattr(self, name)):
                    raise config_error(f"{self.GROUP}.{name}", value, rule.words)


@dataclass
class Settings(Keys):
    """Of any launcher."""

    GROUP: ClassVar[str] = "hydra.launcher"

    timeout: Annotated[Any, number(0.001).or_null()] = None  # seconds a job may take
    retries: Annotated[int, integer(0)] = 0  # times a failed job is tried again
    on_failure: Annotated[str, one_of("continue", "stop")] = "continue"  # stop: hand out no more jobs
    same_code: bool = False  # refuse to go on with another commit than the sweep began with
    dry_run: bool = False  # print the jobs, run none


def _is_gpus(value: Any) -> bool:
    if isinstance(value, list) or OmegaConf.is_list(value):
        return 0 < len(value) == len({str(gpu) for gpu in value})
    return value == "all" or (isinstance(value, int) and not isinstance(value, bool))


@dataclass
class LocalSettings(Settings):
    """Hydra's schema of the launcher of this machine: it checks the types, and the rules the rest."""

    _target_: str = "hydra_plugins.lockstep_launcher.LockstepLauncher"
    # which GPUs jobs are packed onto: all visible ones, a list of ids, or how many
    gpus: Annotated[Any, Rule("accepted is all, a number, or a list of GPUs", _is_gpus)] = "all"
    jobs: Annotated[int, integer(1)] = 1  # CPU jobs at once; more than one share the cores

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


_LINES = Rule(
    "accepted is a list of text", lambda v: isinstance(v, Sequence) and not isinstance(v, str) and all(map(TEXT.test, v))
)
_TIME = Rule(
    "accepted is a time as HH:MM:SS or D-HH:MM:SS, in quotes in a file",
    lambda v: isinstance(v, str) and re.fullmatch(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){1,2}", v) is not None,
)


@dataclass
class SlurmSettings(Settings):
    """What a job asks SLURM for; may depend on the job's own config, by ${...}. conf/hydra/launcher/slurm.yaml says what each
    key means."""

    partition: Annotated[Any, TEXT.or_null()] = None
    account: Annotated[Any, TEXT.or_null()] = None
    time: Annotated[Any, _TIME.or_null()] = None
    mem: Annotated[Any, TEXT.or_null()] = None
    gpus_per_node: Annotated[Any, integer(0).or_null()] = None
    gres: Annotated[Any, TEXT] = "gpu"
    cpus_per_device: Annotated[Any, integer(1)] = 4
    jobs: Annotated[Any, integer(1).or_null()] = None
    warning: Annotated[Any, integer(0, 65535)] = 120
    poll: Annotated[Any, above(0)] = 10
    setup: Annotated[Sequence[str], _LINES] = ()
    sbatch: Annotated[Sequence[str], _LINES] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From hydra.launcher as it is composed."""
        content: Any = OmegaConf.to_container(values, resolve=True)
        return super().of({name: value for name, value in content.items() if name != "_target_"})

    def gpus(self) -> int:
        """Of a node. Raises ConfigError where nobody has said it: this machine need not be like those."""
        if self.gpus_per_node is None:
            words = "accepted is the number of GPUs of a node, 0 where it has none; or trainer.accelerator=cpu"
            raise config_error("hydra.launcher.gpus_per_node", "null", words)
        return self.gpus_per_node

    def flags(self, plan: Plan) -> tuple[str, ...]:
        """For sbatch. One node is one task, whose process starts the others itself, as on any machine; of several nodes each
        process is a task."""
        tasks = plan.devices if plan.num_nodes > 1 else 1
        cpus = self.cpus_per_device * plan.devices // tasks
        flags = [f"--nodes={plan.num_nodes}", f"--ntasks-per-node={tasks}", f"--cpus-per-task={cpus}"]
        if plan.accelerator == "gpu":
            flags.append(f"--gres={self.gres}:{plan.devices}")
        flags += [f"--{name}={value}" for name in OF_SBATCH if (value := getattr(self, name)) is not None]
        return (*flags, "--requeue", f"--signal=USR1@{self.warning}", *self.sbatch)
