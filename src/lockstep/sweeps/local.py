"""Executors of a sweep's jobs: the interface, and this machine's, of process trees, several at once, each on its slots."""

import contextlib
import os
import signal
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.config.construct import own_modules
from lockstep.config.plan import Plan, check_cores, cores
from lockstep.errors import config_error
from lockstep.launchers.environment import JOB_MARK, PARENT_PID, RANK_VARIABLES, SWEPT_KEYS
from lockstep.launchers.processes import Process, kill_group, start
from lockstep.runs.saved import is_queued
from lockstep.sweeps.jobs import OUTPUT, Exit, Job
from lockstep.sweeps.settings import LocalSettings
from lockstep.sweeps.sweep_jobs import JobView, SweepJobs


class Handle:
    """A job under way. waits: what for, while it has not begun. began: when it did, by time.monotonic()."""

    waits: str | None = None
    began = float("inf")

    @abstractmethod
    def poll(self) -> Exit | None:
        """Return None while it is under way, and once how it has ended: nothing of it is left then."""

    @abstractmethod
    def stop(self, *, kill: bool = False) -> None:
        """Ask it to save and to end, or end it."""


class Executor:
    """Starts jobs. name: its option of hydra/launcher. outlives: its jobs go on without the sweep's process."""

    name: str
    outlives = False

    def node_gpus(self, config: DictConfig) -> int | None:
        """Return the GPUs of each node that a job of this config is planned for; None for this machine. Raise ConfigError."""

    @abstractmethod
    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        """Return what a job takes, for the executor and for a person. Raise ConfigError where that is not to be had."""

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise ConfigError for what is never to be had, before anything is written."""

    def open(self, sweep_jobs: SweepJobs) -> None:
        """Find out what has become of jobs in the queue. Raise ConfigError where another executor's queue has some."""
        if queued := [view for view in sweep_jobs.in_queue() if not self.owns(view)]:
            words = f"{len(queued)} job(s) of this sweep are in a queue; use that launcher, or first lockstep sweep cancel"
            raise config_error("hydra/launcher", self.name, words)

    def owns(self, view: JobView) -> bool:
        """True if the job's place in a queue is one of this executor's."""
        return False

    def place(self, view: JobView) -> str | None:
        """Return the name that the next attempt will have in a queue."""

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Return the job to start now, None if there is room for none of them."""
        return waiting[0] if waiting else None

    @abstractmethod
    def start(self, job: Job, view: JobView) -> Handle:
        """Start a job, or find it in the queue. Raise OSError."""


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
    """A process, the slots that it has, and the mark of what it starts."""

    def __init__(self, process: Process, pool: Pool, slots: tuple[str, ...], mark: str) -> None:
        self._process, self._pool, self._slots, self._mark = process, pool, slots, mark
        self.began = time.monotonic()

    def poll(self) -> Exit | None:
        if (code := self._process.poll()) is None:
            return None
        self.stop(kill=True)
        kill_marked(self._mark)
        self._pool.give_back(self._slots)
        return Exit(code)

    def stop(self, *, kill: bool = False) -> None:
        """End the job's own process; its ranks see that this is gone, and follow."""
        if kill:
            kill_group(self._process.pid)
        else:
            is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            self._process.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)


class LocalExecutor(Executor):
    """Packs jobs onto the GPUs, and onto the cores."""

    name = "lockstep"

    def __init__(self, pools: dict[str, Pool], run: Callable[[list[str], DictConfig | None], None]) -> None:
        """`run(arguments, config)` runs `python ARGUMENTS` in the process of a job."""
        self._pools, self._run = pools, run

    @classmethod
    def from_settings(cls, settings: LocalSettings, run: Callable[[list[str], DictConfig | None], None]) -> "LocalExecutor":
        return cls({"cpu": Pool(tuple(map(str, range(settings.jobs)))), "gpu": Pool(settings.gpu_slots())}, run)

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        name, width = choose_pool(plan)
        pool = self._pools[name]
        if width > 1 and any("#" in slot for slot in pool.slots):
            raise config_error("trainer.devices", plan.devices, "hydra.launcher.jobs_per_gpu is for jobs of one GPU")
        if width > len(pool.slots):
            raise config_error("trainer.devices", plan.devices, f"the launcher has {len(pool.slots)} GPUs")
        kept = pool.cores(pool.slots[:width])  # as many as those of the slots that it will have
        check_cores(config, plan.devices if name == "cpu" else 0, len(kept), "each of the launcher's jobs")
        return (f"{name} x {width}",)

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        chosen = (pool.choose([job for job in waiting if job.pool == name]) for name, pool in self._pools.items())
        return next(filter(None, chosen), None)

    def start(self, job: Job, view: JobView) -> Handle:
        pool = self._pools[job.pool]
        slots = pool.take(job.width)
        kept = pool.cores(slots)
        environment = _environment(job, slots, len(kept)) | {JOB_MARK: (mark := uuid.uuid4().hex)}
        try:
            process = start(
                self._run,
                list(job.command[1:]),
                job.composed if _is_made_here(job) else None,
                title=f"lockstep job {job.directory.name}",
                environment=environment,
                output=job.directory / OUTPUT,
                cores_kept=kept,
                fresh=job.fresh,
                imports=() if job.composed is None else own_modules(job.composed),
            )
        except OSError:
            pool.give_back(slots)
            raise
        return LocalHandle(process, pool, slots, mark)


def choose_pool(plan: Plan) -> tuple[str, int]:
    """Return a job's pool and how many slots of it the job takes: a GPU job one per device, a CPU job one."""
    return ("gpu", plan.devices) if plan.accelerator == "gpu" else ("cpu", 1)


def _is_made_here(job: Job) -> bool:
    """True if this sweep process has written the run that the job is, and it has not begun: another one goes on by its own
    config."""
    is_own = job.composed is not None and OmegaConf.select(job.composed, "run_id") is not None
    return is_own and is_queued(job.directory)


def kill_marked(mark: str) -> None:
    """Kill what a job's own code has started in a session of its own: it would keep its GPU from the next job. It is found by the
    environment that it was started with, where there is a /proc to read it in: see proc(5)."""
    wanted = f"{JOB_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _environment(job: Job, slots: tuple[str, ...], core_count: int) -> dict[str, str]:
    drop = {*RANK_VARIABLES, PARENT_PID}
    environment = {key: value for key, value in os.environ.items() if key not in drop} | {SWEPT_KEYS: " ".join(job.swept)}
    if job.pool == "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.partition("#")[0] for slot in slots)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, core_count // job.world_size)))
    return environment
