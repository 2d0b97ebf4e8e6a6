"""hydra.launcher.KEY=VALUE of the launcher of Ray."""

from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.config.plan import Plan
from lockstep.config.rules import Rule, above, integer
from lockstep.sweeps.settings import Settings

LOCAL = "local"
_ADDRESS = Rule(
    "use local, auto, or HOST:PORT of a cluster that this machine is in",
    lambda v: v in (LOCAL, "auto") or (isinstance(v, str) and v.rpartition(":")[2].isdecimal() and "/" not in v),
)


@dataclass
class RaySettings(Settings):
    """Resources a job asks Ray for; they may depend on the job's own config, by ${...}. conf/hydra/launcher/ray.yaml says what
    each key means."""

    address: Annotated[Any, _ADDRESS] = LOCAL
    num_cpus: Annotated[Any, integer(1).or_null()] = None
    cpus_per_device: Annotated[Any, above(0)] = 1


@dataclass(frozen=True)
class Share:
    """Resources that a job takes: on each of `nodes` nodes, `devices` processes, and amounts of Ray's resources."""

    nodes: int
    devices: int
    amounts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, plan: Plan, cpus_per_device: float) -> "Share":
        gpus = [("GPU", float(plan.devices))] if plan.accelerator == "gpu" else []
        return cls(plan.num_nodes, plan.devices, (("CPU", float(cpus_per_device * plan.devices)), *gpus))

    def words(self) -> str:
        """Return words for a person: 2 nodes with CPU=4 GPU=4."""
        amounts = " ".join(f"{name}={amount:g}" for name, amount in self.amounts)
        return f"{self.nodes} node{'s' * (self.nodes > 1)} with {amounts}"

    def lacks(self, nodes: list[dict[str, float]]) -> str | None:
        """Return the resource of which too few of these nodes have enough; None where the share can be had some time."""
        fit = nodes
        for name, amount in reversed(self.amounts):  # GPUs are rarer
            fit = [node for node in fit if node.get(name, 0.0) >= amount]
            if not fit:
                return name
        return "nodes" if len(fit) < self.nodes else None
