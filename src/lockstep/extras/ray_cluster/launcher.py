"""Jobs as actors of Ray's: each is started as soon as Ray has room for what it takes, on whichever node that is."""

from collections import Counter
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.attempt import RayAttempt
from lockstep.extras.ray_cluster.cluster import RayCluster
from lockstep.extras.ray_cluster.settings import LOCAL, RaySettings, Share
from lockstep.sweeps.executor import Attempt, Begin, Executor
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.local import refuse_queued
from lockstep.sweeps.sweep_jobs import SweepJobs

_KEYS = {"GPU": "trainer.devices", "CPU": "hydra.launcher.cpus_per_device", "nodes": "trainer.num_nodes"}


class RayExecutor(Executor):
    """Asks for all jobs at once; which of them run is Ray's matter."""

    ends_with_sweep = True

    def __init__(self, settings: RaySettings) -> None:
        self.settings, self.cluster = settings, RayCluster(settings)
        self._shares: dict[str, Share] = {}  # by their words
        self._losses: Counter[str] = Counter()

    def node_gpus(self, config: DictConfig) -> int | None:
        if self.settings.address == LOCAL:
            return None
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        return int(max((node.get("GPU", 0) for node in self.cluster.nodes()), default=0))

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        share = Share.of(plan, RaySettings.from_config(config.hydra.launcher).cpus_per_device)
        self._shares[share.words()] = share
        return (share.words(),)

    def check(self, jobs: Sequence[Job]) -> None:
        nodes = self.cluster.nodes()
        for share in {self._shares[job.resources[0]] for job in jobs}:
            if (name := share.lacks(nodes)) is not None:
                problem = f"a job takes {share.words()}"
                had = f"accepted is what Ray has: {', '.join(map(_words, nodes))}"
                raise config_error(_KEYS[name], _value(name, share), f"{problem}; {had}")

    def reconcile(self, sweep_jobs: SweepJobs) -> None:
        refuse_queued(sweep_jobs, "ray")
        sweep_jobs.reconcile()

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Attempt]]:
        jobs = waiting[:]
        waiting.clear()
        return [(job, RayAttempt(self.cluster, job, self._shares[job.resources[0]], begin(job), self._losses)) for job in jobs]


def _value(name: str, share: Share) -> float:
    """Returns that of the key which asks for a resource."""
    cpus = dict(share.amounts)["CPU"] / share.devices
    return {"GPU": share.devices, "CPU": cpus, "nodes": share.nodes}[name]


def _words(node: dict[str, float]) -> str:
    return " ".join(f"{name}={node.get(name, 0):g}" for name in ("CPU", "GPU"))
