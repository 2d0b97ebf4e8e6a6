"""Executors of a sweep's jobs: the interface, and this machine's, of process trees, several at once, each on its slots."""

import os
import runpy
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from lockstep.config.construct import construct
from lockstep.config.overrides import quote
from lockstep.config.plan import Plan, visible_gpus
from lockstep.errors import config_error
from lockstep.launchers.environment import SWEPT_KEYS, cores
from lockstep.launchers.processes import Process, kill_group, start
from lockstep.runs.saved import FILE
from lockstep.sweeps.jobs import OUTPUT, JobState
from lockstep.sweeps.sweep_jobs import Job, SweepJobs


class Handle:
    """A job under way; times are those of time.monotonic()."""

    waits: str | None = None  # what for, while it has not begun
    began = float("inf")
    is_cancelled = False  # a person has taken it out of a queue: it is not tried again
    ended_for: JobState | None = None  # its state, if the sweep ends it
    kill_at = float("inf")

    @abstractmethod
    def poll(self) -> int | JobState | None:
        """Return None while it is under way, and once its exit code, negative for a signal, or the state that it has ended in."""

    @abstractmethod
    def stop(self, *, kill: bool = False) -> None:
        """Ask it to save and to end, or end it."""

    def end_for(self, state: JobState, seconds: float) -> None:
        """Ask it to end within so many seconds."""
        self.ended_for, self.kill_at = state, time.monotonic() + seconds
        self.stop()


@dataclass(kw_only=True)
class Executor:
    """Starts jobs. Its fields are hydra.launcher.KEY of its option; conf/hydra/launcher/NAME.yaml says what the keys mean."""

    outlives: ClassVar[bool] = False  # its jobs go on without the sweep's process
    timeout: float | None = None
    retries: int = 0
    dry_run: bool = False

    def node_gpus(self, config: DictConfig) -> int | None:
        """Return the GPUs of each node that a job of this config is planned for; None for this machine. Raise ConfigError."""

    @abstractmethod
    def resources(self, config: DictConfig, plan: Plan) -> tuple[Any, ...]:
        """Return what a job takes, for the executor and for a person. Raise ConfigError where that is never to be had."""

    def open(self, sweep_jobs: SweepJobs) -> None:
        """Find out what has become of jobs in the queue. Raise ConfigError where another executor's queue has some."""
        if queued := sweep_jobs.in_queue():
            words = f"{len(queued)} job(s) of it are in a queue; use hydra/launcher=slurm, or first lockstep sweep cancel"
            raise config_error("hydra.sweep.dir", sweep_jobs.directory, words)

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Return the job to start now, None if there is room for none of them."""
        return waiting[0] if waiting else None

    @abstractmethod
    def start(self, job: Job) -> Handle:
        """Start a job, or find it in the queue. Raise OSError."""


def create_executor(config: DictConfig) -> Any:
    """Return the executor of a composed config, whose values may depend on its other keys. Raise ConfigError."""
    node: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    return construct("hydra.launcher", node | {"_target_": node.pop("executor")})


@dataclass
class Pool:
    """Slots by name (GPU ids, say); each is handed out to one job at a time."""

    slots: tuple[str, ...]
    in_use: dict[str, int] = field(default_factory=dict)  # slot to the width of the job that has it

    @property
    def free(self) -> list[str]:
        return [slot for slot in self.slots if slot not in self.in_use]

    def take(self, width: int) -> tuple[str, ...]:
        assert width <= len(self.free)
        given = tuple(self.free[:width])
        self.in_use |= dict.fromkeys(given, width)
        return given

    def give_back(self, slots: Sequence[str]) -> None:
        for slot in slots:
            del self.in_use[slot]

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Return the job to start now: the widest that waits, the earliest of its width. A narrower one may overtake it only
        where that can't delay it: narrower jobs together never hold slots that the widest needs to fit."""
        if not waiting:
            return None
        widest = max(job.width for job in waiting)
        narrower = sum(1 for width in self.in_use.values() if width < widest)
        for job in sorted(waiting, key=lambda job: -job.width):  # a stable sort: the earliest of each width first
            if job.width > len(self.free):
                continue
            if job.width == widest or narrower + job.width <= len(self.slots) - widest:
                return job
        return None

    def cores(self, slots: Sequence[str]) -> list[int]:
        """Return the cores of these slots: each has an equal share. All cores where there are too few."""
        everything = sorted(cores())
        share = len(everything) // len(self.slots)
        places = [self.slots.index(slot) * share for slot in slots]
        return [core for place in places for core in everything[place : place + share]] or everything


class LocalHandle(Handle):
    """A process, and the slots that it has."""

    def __init__(self, process: Process, pool: Pool, slots: tuple[str, ...]) -> None:
        self._process, self._pool, self._slots = process, pool, slots
        self.began = time.monotonic()

    def poll(self) -> int | None:
        if (code := self._process.poll()) is not None:
            self.stop(kill=True)
            self._pool.give_back(self._slots)
        return code

    def stop(self, *, kill: bool = False) -> None:
        """End the job's own process; its ranks see that this is gone, and follow."""
        if kill:
            kill_group(self._process.pid)
        else:
            self._process.send_signal(signal.SIGTERM)  # SIGINT is ignored after nohup


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """Packs jobs onto the GPUs, and onto the cores."""

    jobs_per_gpu: int = 1
    jobs: int = 1

    def __post_init__(self) -> None:
        self.pools = {"cpu": Pool(tuple(map(str, range(self.jobs)))), "gpu": Pool(self.gpu_slots())}

    def gpu_slots(self) -> tuple[str, ...]:
        """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, numbers, or the identifiers of GPUs or of their MIG parts.
        Where several jobs share a GPU, the name has a slot's number behind a #."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        gpus = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.jobs_per_gpu == 1:
            return gpus
        return tuple(f"{gpu}#{number}" for number in range(self.jobs_per_gpu) for gpu in gpus)

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        name, width = choose_pool(plan)
        pool = self.pools[name]
        if width > 1 and self.jobs_per_gpu > 1:
            raise config_error("trainer.devices", plan.devices, "hydra.launcher.jobs_per_gpu is for jobs of one GPU")
        if width > len(pool.slots):
            raise config_error("trainer.devices", plan.devices, f"the launcher has {len(pool.slots)} GPUs")
        return (f"{name} x {width}",)

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        chosen = (pool.choose([job for job in waiting if job.pool == name]) for name, pool in self.pools.items())
        return next(filter(None, chosen), None)

    def start(self, job: Job) -> Handle:
        pool = self.pools[job.pool]
        slots = pool.take(job.width)
        kept = pool.cores(slots)
        try:
            process = start(
                run_program,
                list(job.command[1:]),
                None if job.config is None else saved_config(job),
                title=f"lockstep job {job.directory.name}",
                environment=_environment(job, slots, len(kept)),
                output=job.directory / OUTPUT,
                cores=kept,
                fresh=job.config is not None and job.config.fresh_processes,
            )
        except OSError:
            pool.give_back(slots)
            raise
        return LocalHandle(process, pool, slots)


def choose_pool(plan: Plan) -> tuple[str, int]:
    """Return a job's pool and how many slots of it the job takes: a GPU job one per device, a CPU job one."""
    return ("gpu", plan.devices) if plan.accelerator == "gpu" else ("cpu", 1)


def saved_config(job: Job) -> DictConfig:
    """Return the config that the job's command composes of its saved one, which would take Hydra a fifth of a second."""
    anew: Any = OmegaConf.from_dotlist([*job.command[3:]])
    config: Any = OmegaConf.merge(OmegaConf.load(job.directory / FILE), anew, {"hydra": job.hydra})
    config.hydra.run.dir = str(job.directory)
    config.hydra.overrides.hydra = [f"hydra.run.dir={quote(str(job.directory))}"]
    OmegaConf.set_struct(config, True)
    return config


def run_program(arguments: list[str], config: DictConfig | None) -> None:
    """Run `python ARGUMENTS`, a job of a sweep, in this process. `config`: the one that Hydra would compose."""
    sys.argv[:] = arguments
    GlobalHydra.instance().clear()  # the sweep's, where the job is a fork of it
    setup_globals()
    HydraConfig.instance().cfg = config  # pyright: ignore[reportAttributeAccessIssue]  for lockstep.cli
    runpy.run_path(arguments[0], run_name="__main__")


def run_composed(main: Callable[..., Any], config: Any) -> None:
    """Call a main function of Hydra's with a composed config, as Hydra's own launchers do. Raise what it raises."""
    context = HydraContext(None, Callbacks(config))  # pyright: ignore[reportArgumentType]  nothing asks for a loader
    _ = run_job(main, config, "hydra.run.dir", None, context).return_value


def _environment(job: Job, slots: tuple[str, ...], core_count: int) -> dict[str, str]:
    environment = os.environ | {SWEPT_KEYS: " ".join(job.swept_keys)}
    if job.pool == "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.partition("#")[0] for slot in slots)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, core_count // job.world_size)))
    return environment
