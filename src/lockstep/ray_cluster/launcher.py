"""Jobs as actors of Ray's: each is started as soon as Ray has room for what it takes, on whichever node that is."""

import contextlib
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ExitCode, config_error
from lockstep.launchers.environment import cores
from lockstep.ray_cluster.worker import JobWorker
from lockstep.runs.locks import is_held
from lockstep.sweeps.jobs import FAILED, OUTPUT, PREEMPTED, Job, JobState, read_state
from lockstep.sweeps.local import Executor, Handle

LOCAL = "local"
_OBJECT_STORE = 80 * 2**20  # bytes, little more than Ray's minimum: jobs put nothing into it
_TOGETHER = 60.0  # seconds that a node's part of a job gets once another has ended
_FOLLOW = 30.0  # seconds in which processes are gone whose worker has died
_TORCHRUN = (sys.executable, "-m", "lockstep.ray_cluster.worker")


class Share(NamedTuple):
    """Resources that a job takes: on each of `nodes` nodes `devices` processes, with so many CPUs and GPUs."""

    nodes: int
    devices: int
    cpus: float
    gpus: int

    def __str__(self) -> str:
        gpus = f" GPU={self.gpus}" if self.gpus else ""
        return f"{self.nodes} node{'s' * (self.nodes > 1)} with CPU={self.cpus:g}{gpus}"

    def can_be_had(self, nodes: Sequence[dict[str, float]]) -> bool:
        """True if so many of these nodes have what it takes, in use or not."""
        fit = [node for node in nodes if node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus]
        return len(fit) >= self.nodes


@dataclass(kw_only=True)
class RayExecutor(Executor):
    """Asks for all jobs at once; which of them run is Ray's matter."""

    address: str = LOCAL
    num_cpus: int | None = None
    cpus_per_device: float = 1

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise config_error("hydra/launcher", "ray", "the library `ray` is not installed: pip install 'lockstep[ray]'")

    @cached_property
    def ray(self) -> Any:
        """The module, connected. Raise ConfigError where there is no such cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"address": self.address, "log_to_driver": False, "logging_level": "ERROR"}
        if self.address == LOCAL:
            options |= {"num_cpus": self.num_cpus or len(cores()), "object_store_memory": _OBJECT_STORE}
            options |= {"include_dashboard": False}
        handler = signal.getsignal(signal.SIGTERM)
        ray = importlib.import_module("ray")
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            words = f"{' '.join(str(error).split())}; use local, or the address of a cluster that runs"
            raise config_error("hydra.launcher.address", self.address, words) from error
        finally:
            signal.signal(signal.SIGTERM, handler)  # ray.init replaces it by its own, sys.exit(15)
        return ray

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive, whether they are in use or not."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def node_gpus(self, config: DictConfig) -> int | None:
        if self.address == LOCAL:
            return None
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        return int(max((node.get("GPU", 0) for node in self.nodes()), default=0))

    def resources(self, config: DictConfig, plan: Plan) -> tuple[Share, ...]:
        cpus = config.hydra.launcher.cpus_per_device * plan.devices
        share = Share(plan.num_nodes, plan.devices, cpus, plan.devices if plan.accelerator == "gpu" else 0)
        if not (self.dry_run or share.can_be_had(nodes := self.nodes())):
            had = ", ".join(f"CPU={node.get('CPU', 0):g} GPU={node.get('GPU', 0):g}" for node in nodes)
            raise config_error("hydra/launcher", "ray", f"a job takes {share}; use what Ray has: {had}")
        return (share,)

    def start(self, job: Job) -> Handle:
        return RayJob(self, job, job.launch.resources[0])

    def environment(self, job: Job) -> dict[str, str]:
        """Return the variables that a job gets on any node: this process's, but for those of a place."""
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, int(self.cpus_per_device))))
        shared = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "CUDA_VISIBLE_DEVICES"))}
        return shared | {"OMP_NUM_THREADS": threads}


class RayJob(Handle):
    """An actor of Ray's on each of the job's nodes: each says when it has a place, and then runs its part."""

    def __init__(self, executor: RayExecutor, job: Job, share: Share) -> None:
        self._executor, self._ray, self._job, self._share = executor, executor.ray, job, share
        self._group: Any = None
        self._actors = self._place()
        self._places = [actor.place.remote() for actor in self._actors]
        self._runs: list[Any] = []
        self._ends_by = float("inf")
        self._lost: tuple[str, float] | None = None  # why, and when its processes are gone at the latest
        self.waits = f"waits for {share}"

    def _place(self) -> list[Any]:
        """Ask for the share, by a placement group where it is of several nodes; return an actor on each node."""
        share, actor = self._share, self._ray.remote(JobWorker)
        options: dict[str, Any] = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_concurrency": 2}
        if share.nodes == 1:
            return [actor.options(**options).remote(str(Path.cwd()))]
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        amounts = {"CPU": share.cpus} | ({"GPU": share.gpus} if share.gpus else {})
        self._group = importlib.import_module("ray.util").placement_group([amounts] * share.nodes, strategy="STRICT_SPREAD")
        places = (strategies.PlacementGroupSchedulingStrategy(self._group, index) for index in range(share.nodes))
        return [actor.options(**options, scheduling_strategy=place).remote(str(Path.cwd())) for place in places]

    def poll(self) -> int | JobState | None:
        if self._lost is not None:  # a next attempt must not meet the processes of this one, which follow the dead worker
            reason, gone_by = self._lost
            is_left = is_held(self._job.directory) and time.monotonic() < gone_by
            return None if is_left else JobState(PREEMPTED, reason)
        try:
            code = self._look()
        except self._ray.exceptions.RayTaskError as error:  # it could not be started there
            self._release()
            return JobState(FAILED, str(error).strip().splitlines()[-1])
        except self._ray.exceptions.RayError as error:
            self._release()
            lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
            self._lost = (": ".join(["Ray has lost its worker", *lines[-1:]]), time.monotonic() + _FOLLOW)
            return None
        if code is not None:
            self._release()
        return code

    def _look(self) -> int | None:
        """Return the job's code when it has ended. Raise RayError where an actor has died."""
        if not self._runs:
            if len(self._ended(self._places)) == len(self._places):
                self._run(*self._ray.get(self._places)[0])
            return None
        codes = self._ray.get(self._ended(self._runs))
        if len(codes) == len(self._runs) or time.monotonic() > self._ends_by:
            return self._code(codes)
        if codes:
            self._ends_by = min(self._ends_by, time.monotonic() + _TOGETHER)
        return None

    def _ended(self, references: list[Any]) -> list[Any]:
        return self._ray.wait(references, num_returns=len(references), timeout=0)[0]

    def _run(self, host: str, port: int) -> None:
        """Each node's processes are started by torchrun where there are several nodes, and meet at the first one."""
        share, command = self._share, self._job.launch.command
        commands = [list(command)]
        if share.nodes > 1:
            meeting = (f"--nnodes={share.nodes}", f"--nproc-per-node={share.devices}", f"--rdzv-id={self._job.key}")
            meeting += (f"--master-addr={host}", f"--master-port={port}")
            commands = [[*_TORCHRUN, *meeting, f"--node-rank={node}", *command[1:]] for node in range(share.nodes)]
        given, output = self._executor.environment(self._job), str(self._job.directory / OUTPUT)
        self._runs = [actor.run.remote(command, given, output) for actor, command in zip(self._actors, commands, strict=True)]
        self.waits, self.began = None, time.monotonic()

    def _code(self, codes: Sequence[int]) -> int:
        """torchrun says 1 whatever code its processes have ended with."""
        if len(codes) == len(self._runs) and not any(codes):
            return ExitCode.FINISHED
        if self._share.nodes > 1 and read_state(self._job.directory).status == PREEMPTED:
            return ExitCode.PREEMPTED
        return next(filter(None, codes), ExitCode.FAILED)

    def stop(self, *, kill: bool = False) -> None:
        if kill or not self._runs:
            self._release()
        else:
            for actor in self._actors:
                actor.ask_to_end.remote()

    def _release(self) -> None:
        """End the actors, with what they run, and give back their share."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            for actor in self._actors:
                self._ray.kill(actor)
            if self._group is not None:
                importlib.import_module("ray.util").remove_placement_group(self._group)
