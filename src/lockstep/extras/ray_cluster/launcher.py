"""Jobs as actors of Ray's: each is started as soon as Ray has room for what it takes, on whichever node that is."""

import contextlib
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan, cores
from lockstep.errors import ExitCode, config_error
from lockstep.extras.ray_cluster.worker import JobWorker
from lockstep.launchers.environment import JOB_MARK, PARENT_PID, RANK_VARIABLES, SWEEP_PIPE, SWEPT_KEYS
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs.locks import is_held
from lockstep.sweeps.jobs import FAILED, INTERRUPTED, OUTPUT, Exit, JobState, read_status
from lockstep.sweeps.local import Executor, Handle, Settings
from lockstep.sweeps.sweep_jobs import Job

LOCAL = "local"
_KEYS = {"GPU": "trainer.devices", "CPU": "hydra.launcher.cpus_per_device", "nodes": "trainer.num_nodes"}
_OBJECT_STORE = 80 * 2**20  # bytes, little more than Ray's minimum: jobs put nothing into it
_TOGETHER = 60.0  # seconds that a node's part of a job gets once another has ended
_FOLLOW = 30.0  # seconds in which processes are gone whose worker has died
_OF_A_PLACE = {*RANK_VARIABLES, PARENT_PID, SWEEP_PIPE, JOB_MARK, "CUDA_VISIBLE_DEVICES"}
_TORCHRUN = (sys.executable, "-m", "lockstep.extras.ray_cluster.worker")


@dataclass(kw_only=True)
class RaySettings(Settings):
    """Resources a job asks Ray for; they may depend on the job's own config, by ${...}."""

    address: str = LOCAL
    num_cpus: int | None = None
    cpus_per_device: float = 1


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


class RayExecutor(Executor):
    """Asks for all jobs at once; which of them run is Ray's matter."""

    name = "ray"

    def __init__(self, config: DictConfig) -> None:
        if importlib.util.find_spec("ray") is None:
            raise config_error("hydra/launcher", "ray", "the library `ray` is not installed: pip install 'lockstep[ray]'")
        self.settings = RaySettings.of(config)
        self._shares: dict[str, Share] = {}  # by their words

    @cached_property
    def ray(self) -> Any:
        """The module, connected. Raise ConfigError where there is no such cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = self.settings
        options: dict[str, Any] = {"address": settings.address, "log_to_driver": False, "logging_level": "ERROR"}
        if settings.address == LOCAL:
            options |= {"num_cpus": settings.num_cpus or len(cores()), "object_store_memory": _OBJECT_STORE}
            options |= {"include_dashboard": False}
        with _own_signals():
            ray = importlib.import_module("ray")
            try:
                ray.init(**options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                words = f"{' '.join(str(error).split())}; use local, or the address of a cluster that runs"
                raise config_error("hydra.launcher.address", settings.address, words) from error
        return ray

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive, whether they are in use or not."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def node_gpus(self, config: DictConfig) -> int | None:
        if self.settings.address == LOCAL:
            return None
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        return int(max((node.get("GPU", 0) for node in self.nodes()), default=0))

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        share = Share.of(plan, RaySettings.of(config).cpus_per_device)
        self._shares[share.words()] = share
        return (share.words(),)

    def check(self, jobs: Sequence[Job]) -> None:
        nodes = self.nodes()
        for share in {self._shares[job.start.resources[0]] for job in jobs}:
            if (name := share.lacks(nodes)) is not None:
                asked = {"GPU": share.devices, "CPU": dict(share.amounts)["CPU"] / share.devices, "nodes": share.nodes}[name]
                had = ", ".join(" ".join(f"{name}={node.get(name, 0):g}" for name in ("CPU", "GPU")) for node in nodes)
                raise config_error(_KEYS[name], asked, f"a job takes {share.words()}; use what Ray has: {had}")

    def start(self, job: Job) -> Handle:
        return RayJob(self, job, self._shares[job.start.resources[0]])

    def environment(self, job: Job) -> dict[str, str]:
        """Return the variables that a job gets on any node: this process's, as sbatch gives them, but for those of a place."""
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, int(self.settings.cpus_per_device))))
        own = {name for name in os.environ if name.startswith("RAY_") or name in _OF_A_PLACE}
        kept = {name: value for name, value in os.environ.items() if name not in own}
        return kept | {SWEPT_KEYS: " ".join(job.start.swept), "OMP_NUM_THREADS": threads}


class RayJob(Handle):
    """An actor of Ray's on each of the job's nodes: each says when it has a place, and then runs its part."""

    def __init__(self, executor: RayExecutor, job: Job, share: Share) -> None:
        self._executor, self._ray, self._job, self._share = executor, executor.ray, job, share
        self._group: Any = None
        self._actors = self._place()
        self._places = [actor.place.remote() for actor in self._actors]
        self._runs: list[Any] = []
        self._ends_by = float("inf")
        self._is_killed = False
        self._lost: tuple[str, float] | None = None  # why, and when its processes are gone at the latest
        self.waits = f"waits for {share.words()}"

    def _place(self) -> list[Any]:
        """Ask for the share, by a placement group where it is of several nodes; return an actor on each node."""
        amounts, actor = dict(self._share.amounts), self._ray.remote(JobWorker)
        options: dict[str, Any] = {"num_cpus": amounts["CPU"], "num_gpus": amounts.get("GPU", 0), "max_concurrency": 2}
        if self._share.nodes == 1:
            return [actor.options(**options).remote(str(Path.cwd()))]
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._group = importlib.import_module("ray.util").placement_group([amounts] * self._share.nodes, strategy="STRICT_SPREAD")
        places = (strategies.PlacementGroupSchedulingStrategy(self._group, index) for index in range(self._share.nodes))
        return [actor.options(**options, scheduling_strategy=place).remote(str(Path.cwd())) for place in places]

    def poll(self) -> Exit | None:
        if self._lost is not None:
            return self._end_of_lost(*self._lost)
        try:
            code = self._look()
        except self._ray.exceptions.RayTaskError as error:  # it could not be started there
            self._release()
            return Exit(None, JobState(FAILED, str(error).strip().splitlines()[-1]))
        except self._ray.exceptions.RayError as error:
            self._release()
            lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
            self._lost = (": ".join(["Ray has lost its worker", *lines[-1:]])[:300], time.monotonic() + _FOLLOW)
            return None
        if code is not None:
            self._release()
        return None if code is None else Exit(code)

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
        share, command = self._share, self._job.start.command
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
        if self._share.nodes > 1 and read_status(self._job.directory)[0] == "preempted":
            return ExitCode.PREEMPTED
        return next(filter(None, codes), ExitCode.FAILED)

    def _end_of_lost(self, reason: str, gone_by: float) -> Exit | None:
        """A next attempt must not meet the processes of this one, which follow the worker that has died."""
        if is_held(self._job.directory) and time.monotonic() < gone_by:
            return None
        return Exit(None, JobState(INTERRUPTED, "killed by the sweep" if self._is_killed else reason))

    def stop(self, *, kill: bool = False) -> None:
        if kill or not self._runs:
            self._is_killed = True
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


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which ray.init replaces by its own, sys.exit(15)."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as left:
        if left.code == signal.SIGTERM:
            raise Preempted(signal.SIGTERM) from left
        raise
    finally:
        signal.signal(signal.SIGTERM, kept)
