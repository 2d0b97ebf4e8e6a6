"""Jobs as actors of Ray's: each is started as soon as Ray has room for what it takes, on whichever node that is.

They end with the sweep's process, or by hydra.launcher.detach=true go on without it: see left.py.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.extras.ray_cluster.attempt import RayAttempt
from lockstep.extras.ray_cluster.cluster import RayCluster
from lockstep.extras.ray_cluster.left import LeftAttempt, LeftJobs, places, reconcile
from lockstep.extras.ray_cluster.settings import LOCAL, RaySettings, Share
from lockstep.sweeps.executor import Attempt, Begin, Executor
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.local import refuse_queued
from lockstep.sweeps.manifest import Manifest

_KEYS = {"GPU": "trainer.devices", "CPU": "hydra.launcher.cpus_per_device", "nodes": "trainer.num_nodes"}


class RayExecutor(Executor):
    """Asks for all jobs at once; which of them run is Ray's matter."""

    def __init__(self, sweep_dir: Path, settings: RaySettings) -> None:
        self.settings, self.cluster = settings, RayCluster(settings)
        self.ends_with_sweep, self.detaches = not settings.detach, settings.detach
        self._left, self._adopted = LeftJobs(sweep_dir, self.cluster), dict[str, LeftAttempt]()
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
        if self.detaches and share.nodes > 1:
            words = "the parts of a job on several nodes are brought together by the sweep's process; accepted is 1"
            raise config_error("trainer.num_nodes", share.nodes, f"{words}, or hydra.launcher.detach=false")
        self._shares[share.words()] = share
        return (share.words(),)

    def check(self, jobs: Sequence[Job]) -> None:
        nodes = self.cluster.nodes()
        for share in {self._shares[job.resources[0]] for job in jobs if not self.settings.autoscaler}:
            if (name := share.lacks(nodes)) is not None:
                problem = f"a job takes {share.words()}"
                had = f"accepted is what Ray has: {', '.join(map(_words, nodes))}; or hydra.launcher.autoscaler=true"
                raise config_error(_KEYS[name], _value(name, share), f"{problem}; {had}")

    def reconcile(self, manifest: Manifest) -> None:
        if len(places(manifest)) < len(manifest.in_queue()):
            refuse_queued(manifest, "ray")
        manifest.reconcile()
        if self._left.folder.is_dir():
            self._adopted = reconcile(manifest, self._left)

    def adopt(self, job: Job) -> LeftAttempt | None:
        return self._adopted.pop(job.key, None)

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Attempt]]:
        jobs = waiting[:]
        waiting.clear()
        return [(job, self._start(job, self._shares[job.resources[0]], begin)) for job in jobs]

    def _start(self, job: Job, share: Share, begin: Begin) -> Attempt:
        if self.detaches:
            return self._left.leave(job, share, begin)
        return RayAttempt(self.cluster, job, share, begin(job), self._losses)


def _value(name: str, share: Share) -> float:
    """Returns that of the key which asks for a resource."""
    cpus = dict(share.amounts)["CPU"] / share.devices
    return {"GPU": share.devices, "CPU": cpus, "nodes": share.nodes}[name]


def _words(node: dict[str, float]) -> str:
    return " ".join(f"{name}={node.get(name, 0):g}" for name in ("CPU", "GPU"))
