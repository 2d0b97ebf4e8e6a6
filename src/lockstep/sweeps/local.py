"""Executors of a sweep's jobs: the interface, and this machine's, of process trees, several at once, each on its slots."""

import contextlib
import os
import runpy
import signal
import sys
import time
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lockstep.config.construct import construct
from lockstep.config.plan import Plan, cores, visible_gpus
from lockstep.errors import config_error
from lockstep.launchers.environment import JOB_MARK, PARENT_PID, RANK_VARIABLES, SWEPT_KEYS
from lockstep.launchers.processes import Process, kill_group, start
from lockstep.runs.locks import Lock
from lockstep.sweeps.jobs import OUTPUT, Exit
from lockstep.sweeps.sweep_jobs import Job, SweepJobs


@dataclass(kw_only=True)
class Settings:
    """hydra.launcher.KEY of every launcher; conf/hydra/launcher/NAME.yaml says what the keys mean."""

    timeout: float | None = None
    retries: int = 0
    dry_run: bool = False

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """Return those of a composed config, whose values may depend on its other keys. Raise ConfigError."""
        node: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
        values = {name: value for name, value in node.items() if name not in ("_target_", "executor")}
        return construct("hydra.launcher", {"_target_": f"{cls.__module__}.{cls.__qualname__}", **values})


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
    settings: Any  # Settings, or those of its own

    @abstractmethod
    def __init__(self, config: DictConfig) -> None:
        """`config`: the sweep's, Hydra's part with it."""

    def node_gpus(self, config: DictConfig) -> int | None:
        """Return the GPUs of each node that a job of this config is planned for; None for this machine. Raise ConfigError."""

    @abstractmethod
    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        """Return what a job takes, for the executor and for a person. Raise ConfigError where that is not to be had."""

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise ConfigError for what is never to be had, before anything is written."""

    def open(self, sweep_jobs: SweepJobs) -> None:
        """Find out what has become of jobs in the queue. Raise ConfigError where another executor's queue has some."""
        if queued := sweep_jobs.in_queue():
            words = f"{len(queued)} job(s) of this sweep are in a queue; use that launcher, or first lockstep sweep cancel"
            raise config_error("hydra/launcher", self.name, words)

    def place(self, job: Job) -> str | None:
        """Return the name that the next attempt will have in a queue."""

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Return the job to start now, None if there is room for none of them."""
        return waiting[0] if waiting else None

    @abstractmethod
    def start(self, job: Job) -> Handle:
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


@dataclass(kw_only=True)
class LocalSettings(Settings):
    jobs_per_gpu: int = 1
    jobs: int = 1

    def gpu_slots(self) -> tuple[str, ...]:
        """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, numbers, or the identifiers of GPUs or of their MIG parts.
        Where several jobs share a GPU, the name has a slot's number behind a #."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        gpus = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.jobs_per_gpu == 1:
            return gpus
        return tuple(f"{gpu}#{number}" for number in range(self.jobs_per_gpu) for gpu in gpus)


class LocalExecutor(Executor):
    """Packs jobs onto the GPUs, and onto the cores."""

    name = "lockstep"

    def __init__(self, config: DictConfig) -> None:
        self.settings = LocalSettings.of(config)
        self.pools = {"cpu": Pool(tuple(map(str, range(self.settings.jobs)))), "gpu": Pool(self.settings.gpu_slots())}

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        name, width = choose_pool(plan)
        pool = self.pools[name]
        if width > 1 and any("#" in slot for slot in pool.slots):
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
        environment = _environment(job, slots, len(kept)) | {JOB_MARK: (mark := uuid.uuid4().hex)}
        try:
            process = start(
                run_program,
                list(job.start.command[1:]),
                title=f"lockstep job {job.directory.name}",
                environment=environment,
                output=job.directory / OUTPUT,
                cores_kept=kept,
                fresh=job.start.fresh,
            )
        except OSError:
            pool.give_back(slots)
            raise
        return LocalHandle(process, pool, slots, mark)


def choose_pool(plan: Plan) -> tuple[str, int]:
    """Return a job's pool and how many slots of it the job takes: a GPU job one per device, a CPU job one."""
    return ("gpu", plan.devices) if plan.accelerator == "gpu" else ("cpu", 1)


def run_program(arguments: list[str]) -> None:
    """Run `python ARGUMENTS` in this process, a job of a sweep."""
    sys.argv[:] = arguments
    Lock.forget()  # the sweep's, where the job is a fork of it
    GlobalHydra.instance().clear()  # likewise
    runpy.run_path(arguments[0], run_name="__main__")


def kill_marked(mark: str) -> None:
    """Kill what a job's own code has started in a session of its own: it would keep its GPU from the next job. It is found by the
    environment that it was started with, where there is a /proc to read it in: see proc(5)."""
    wanted = f"{JOB_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _environment(job: Job, slots: tuple[str, ...], core_count: int) -> dict[str, str]:
    drop, swept = {*RANK_VARIABLES, PARENT_PID}, " ".join(job.start.swept)
    environment = {key: value for key, value in os.environ.items() if key not in drop} | {SWEPT_KEYS: swept}
    if job.pool == "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.partition("#")[0] for slot in slots)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, core_count // job.world_size)))
    return environment
