"""Jobs as process trees of their own on this machine, several at once, each on slots of its own."""

import contextlib
import os
import signal
import time
import uuid
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
from lockstep.sweeps.executor import Attempt, Begin, Executor
from lockstep.sweeps.job_directory import OUTPUT
from lockstep.sweeps.jobs import Job, choose_pool
from lockstep.sweeps.settings import LocalSettings
from lockstep.sweeps.states import FAILED, Exit, JobState
from lockstep.sweeps.sweep_jobs import SweepJobs


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
        """The job to start now: the widest that waits, the earliest of its width. A narrower one may overtake it only
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


class LocalAttempt(Attempt):
    """A process, the slots that it has, and the mark of what it starts."""

    def __init__(self, process: Process, pool: Pool, slots: tuple[str, ...], mark: str) -> None:
        self._process, self._pool, self._slots, self._mark = process, pool, slots, mark
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def reap(self) -> Exit | None:
        if (code := self._process.poll()) is None:
            return None
        self.kill()
        kill_marked(self._mark)
        self._pool.give_back(self._slots)
        return Exit(code)

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT)

    def kill(self) -> None:
        """The job's own process; its ranks see that this is gone, and follow."""
        kill_group(self._process.pid)


@dataclass
class NotStarted(Attempt):
    """A job for which there was no process, or no file: its disk is full, say."""

    error: OSError

    def reap(self) -> Exit:
        return Exit(None, JobState(FAILED, f"could not be started ({self.error.strerror or self.error})"))


class LocalExecutor(Executor):
    """Packs jobs onto the GPUs, and onto the cores."""

    ends_with_sweep = True

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
        kept = _assign_cores(pool, pool.slots[:width])  # as many as the slots that it will have keep it to
        check_cores(config, plan.devices if name == "cpu" else 0, len(kept), "each of the launcher's jobs")
        return (f"{name} x {width}",)

    def reconcile(self, sweep_jobs: SweepJobs) -> None:
        refuse_queued(sweep_jobs, "lockstep")
        sweep_jobs.reconcile()

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Attempt]]:
        started = []
        for name, pool in self._pools.items():
            while (job := pool.choose([job for job in waiting if job.pool == name])) is not None:
                waiting.remove(job)
                started.append((job, self._start(job, pool, begin)))
        return started

    def _start(self, job: Job, pool: Pool, begin: Begin) -> Attempt:
        slots = pool.take(job.width)
        kept = _assign_cores(pool, slots)
        environment = _environment(job, slots, len(kept)) | {JOB_MARK: (mark := uuid.uuid4().hex)}
        try:
            command = begin(job, devices=list(slots))
            process = start(
                self._run,
                command[1:],
                job.composed if _is_made_here(job) else None,
                title=f"lockstep job {job.directory.name}",
                environment=environment,
                output=job.directory / OUTPUT,
                cores_kept=kept,
                fresh=job.fresh,
                imports=() if job.composed is None else own_modules(job.composed),
            )
        except OSError as error:
            pool.give_back(slots)
            return NotStarted(error)
        return LocalAttempt(process, pool, slots, mark)


def _is_made_here(job: Job) -> bool:
    """Return whether this sweep process has written the run that the job is, and it has not begun: another one goes on by its own
    config."""
    is_own = job.composed is not None and OmegaConf.select(job.composed, "run_id") is not None
    return is_own and is_queued(job.directory)


def refuse_queued(sweep_jobs: SweepJobs, launcher: str) -> None:
    """Raises ConfigError where a queue has jobs of the sweep: this launcher would start them a second time."""
    if queued := sweep_jobs.in_queue():
        accepted = "accepted is the launcher that put them there, or first scripts/sweep.py cancel"
        raise config_error("hydra/launcher", launcher, f"{len(queued)} job(s) of this sweep are in a queue; {accepted}")


def kill_marked(mark: str) -> None:
    """What a job's own code has started in a session of its own: it would keep its GPU from the next job. By the environment that
    a program was started with, where there is a /proc to read it in: see proc(5)."""
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


def _assign_cores(pool: Pool, slots: Sequence[str]) -> list[int]:
    """Jobs at the same time keep to cores of their own: each slot has an equal share. All cores where there are too few."""
    everything = sorted(cores())
    share = len(everything) // len(pool.slots)
    if not share:
        return everything
    places = [pool.slots.index(slot) for slot in slots]
    return [core for place in places for core in everything[place * share : (place + 1) * share]]
