"""hydra.launcher.KEY=VALUE under hydra/launcher=slurm; what the keys mean is said in conf/hydra/launcher/slurm.yaml."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import TEXT, Rule, above, integer
from lockstep.errors import config_error
from lockstep.sweeps.settings import Settings

_OF_SBATCH = ("partition", "account", "time", "mem")  # keys that are its flags too
_LINES = Rule(
    "accepted is a list of text", lambda v: isinstance(v, Sequence) and not isinstance(v, str) and all(map(TEXT.test, v))
)


def _is_time(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){1,2}", value) is not None


@dataclass
class SlurmSettings(Settings):
    """What a job asks SLURM for; may depend on the job's own config, by ${...}."""

    RULES: ClassVar[Mapping[str, Rule]] = {
        **Settings.RULES,
        **dict.fromkeys(("partition", "account", "mem"), TEXT.or_null()),
        "time": Rule("accepted is a time as HH:MM:SS or D-HH:MM:SS, in quotes in a file", _is_time).or_null(),
        "gpus_per_node": integer(0).or_null(),
        "gres": TEXT,
        "cpus_per_device": integer(1),
        "jobs": integer(1).or_null(),
        "warning": integer(0, 65535),
        "poll": above(0),
        "setup": _LINES,
        "sbatch": _LINES,
    }

    partition: Any = None
    account: Any = None
    time: Any = None
    mem: Any = None
    gpus_per_node: Any = None
    gres: Any = "gpu"
    cpus_per_device: Any = 4
    jobs: Any = None
    warning: Any = 120
    poll: Any = 10
    setup: Sequence[str] = field(default_factory=list)
    sbatch: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(cls, launcher: DictConfig) -> Self:
        """From hydra.launcher as it is composed. Raises ConfigError."""
        content: Any = OmegaConf.to_container(launcher, resolve=True)
        return cls(**{name: value for name, value in content.items() if name != "_target_"})

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
        flags += [f"--{name}={value}" for name in _OF_SBATCH if (value := getattr(self, name)) is not None]
        return (*flags, "--requeue", f"--signal=USR1@{self.warning}", *self.sbatch)
