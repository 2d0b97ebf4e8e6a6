"""hydra.launcher.KEY=VALUE of the launcher of SLURM's queue."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.config.plan import Plan
from lockstep.config.rules import TEXT, Rule, above, integer
from lockstep.errors import config_error
from lockstep.sweeps.settings import Settings

SBATCH_KEYS = ("partition", "account", "time", "mem")  # keys that are its flags too
_LINES = Rule("use a list of text", lambda v: isinstance(v, Sequence) and not isinstance(v, str) and all(map(TEXT.test, v)))
_TIME = Rule(
    "use a time as HH:MM:SS or D-HH:MM:SS, in quotes in a file",
    lambda v: isinstance(v, str) and re.fullmatch(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){1,2}", v) is not None,
)


@dataclass
class SlurmSettings(Settings):
    """Resources a job asks SLURM for; they may depend on the job's own config, by ${...}. conf/hydra/launcher/slurm.yaml says
    what each key means."""

    partition: Annotated[Any, TEXT.or_null()] = None
    account: Annotated[Any, TEXT.or_null()] = None
    time: Annotated[Any, _TIME.or_null()] = None
    mem: Annotated[Any, TEXT.or_null()] = None
    gpus_per_node: Annotated[Any, integer(0).or_null()] = None
    gres: Annotated[Any, TEXT] = "gpu"
    cpus_per_device: Annotated[Any, integer(1)] = 4
    warning: Annotated[Any, integer(0, 65535)] = 120
    poll: Annotated[Any, above(0)] = 10
    setup: Annotated[Sequence[str], _LINES] = ()
    sbatch: Annotated[Sequence[str], _LINES] = ()

    def gpus(self) -> int:
        """Returns the GPUs of a node. Raises ConfigError where nobody has said it: this machine need not be like those."""
        if self.gpus_per_node is None:
            words = "use the number of GPUs of a node, 0 where it has none; or trainer.accelerator=cpu"
            raise config_error("hydra.launcher.gpus_per_node", "null", words)
        return self.gpus_per_node

    def flags(self, plan: Plan) -> tuple[str, ...]:
        """Returns options of sbatch. One node is one task, whose process starts the others itself, as on any machine; of several
        nodes each process is a task."""
        tasks = plan.devices if plan.num_nodes > 1 else 1
        cpus = self.cpus_per_device * plan.devices // tasks
        flags = [f"--nodes={plan.num_nodes}", f"--ntasks-per-node={tasks}", f"--cpus-per-task={cpus}"]
        if plan.accelerator == "gpu":
            flags.append(f"--gres={self.gres}:{plan.devices}")
        flags += [f"--{name}={value}" for name in SBATCH_KEYS if (value := getattr(self, name)) is not None]
        return (*flags, "--requeue", f"--signal=USR1@{self.warning}", *self.sbatch)
