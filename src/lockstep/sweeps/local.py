"""Executors of a sweep's jobs: the interface, and the executor of this machine, which packs jobs onto slots and forks them."""

import os
import runpy
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
from lockstep.launchers.environment import cores
from lockstep.launchers.processes import Process, kill_group, start
from lockstep.runs.saved import FILE, read_yaml
from lockstep.sweeps.jobs import OUTPUT, Job, JobState, SweepJobs


class Handle:
    """A job under way."""

    waits: str | None = None  # what it waits for, until it begins
    began = float("inf")  # by time.monotonic()
    is_cancelled = False  # a person has taken it out of a queue: it is not tried again
    ended_for: JobState | None = None  # its state, if the sweep ends it

    @abstractmethod
    def poll(self) -> int | JobState | None:
        """Return None while it is under way, then its exit code, negative for a signal, or the state in which it has ended."""

    @abstractmethod
    def stop(self, *, kill: bool = False) -> None:
        """Ask it to save and to end, or end it."""


@dataclass(kw_only=True)
class Executor:
    """Starts jobs. Its fields are hydra.launcher.KEY of its option; conf/hydra/launcher/NAME.yaml explains the keys."""

    outlives: ClassVar[bool] = False  # its jobs go on without the sweep's process
    timeout: float | None = None
    retries: int = 0
    dry_run: bool = False

    def node_gpus(self, config: DictConfig) -> int | None:
        """Return the GPUs of each node that a job of this config is planned for; None for this machine. Raise ConfigError."""

    @abstractmethod
    def resources(self, config: DictConfig, plan: Plan) -> tuple[Any, ...]:
        """Return what a job takes. Raise ConfigError if it can never have that."""

    def open(self, sweep_jobs: SweepJobs) -> None:
        """Find out what has become of jobs in the queue. Raise ConfigError if another executor's queue has some."""
        if queued := sweep_jobs.in_queue():
            words = f"{len(queued)} job(s) of it are in a queue; use hydra/launcher=slurm, or first lockstep sweep cancel"
            raise config_error("hydra.sweep.dir", sweep_jobs.directory, words)

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        """Return the job to start now, or None if none of them has room."""
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
    """Slots by name, such as GPU ids; each is handed out to one job at a time."""

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

    def choose(self, widths: Sequence[int]) -> int | None:
        """Return the index of the job to start now, by the widths of those that wait: the widest, the earliest of its width. A
        narrower one may overtake it only if that can't delay it: narrower jobs together never hold slots that the widest needs
        to fit."""
        widest = max(widths, default=0)
        narrower = sum(1 for width in self.in_use.values() if width < widest)
        for index in sorted(range(len(widths)), key=lambda index: -widths[index]):  # stable: the earliest of each width first
            width = widths[index]
            if width <= len(self.free) and (width == widest or narrower + width <= len(self.slots) - widest):
                return index
        return None

    def cores(self, slots: Sequence[str]) -> list[int]:
        """Return the cores of these slots: each has an equal share. Return all cores if there are too few."""
        everything = sorted(cores())
        share = len(everything) // len(self.slots)
        places = [self.slots.index(slot) * share for slot in slots]
        return [core for place in places for core in everything[place : place + share]] or everything


class Slots(NamedTuple):
    """The slots that a job takes: of the pool "gpu" one per device, of "cpu" one."""

    pool: str
    width: int

    def __str__(self) -> str:
        return f"{self.width} {self.pool.upper()} slot{'s' * (self.width > 1)}"


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
        """End the job's own process; its ranks follow, because they watch it."""
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
        """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them: numbers, or identifiers of GPUs or of their MIG parts. If
        several jobs share a GPU, a # and a slot's number follow the name."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        gpus = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.jobs_per_gpu == 1:
            return gpus
        return tuple(f"{gpu}#{number}" for number in range(self.jobs_per_gpu) for gpu in gpus)

    def resources(self, config: DictConfig, plan: Plan) -> tuple[Slots]:
        slots = Slots("gpu", plan.devices) if plan.accelerator == "gpu" else Slots("cpu", 1)
        if slots.width > 1 and self.jobs_per_gpu > 1:
            raise config_error("trainer.devices", plan.devices, "hydra.launcher.jobs_per_gpu is for jobs of one GPU")
        if slots.width > (count := len(self.pools[slots.pool].slots)):
            raise config_error("trainer.devices", plan.devices, f"the launcher has {count} GPUs")
        return (slots,)

    def choose(self, waiting: Sequence[Job]) -> Job | None:
        for name, pool in self.pools.items():
            jobs = [job for job in waiting if job.launch.resources[0].pool == name]
            if (index := pool.choose([job.launch.resources[0].width for job in jobs])) is not None:
                return jobs[index]
        return None

    def start(self, job: Job) -> Handle:
        launch, wanted = job.launch, job.launch.resources[0]
        pool = self.pools[wanted.pool]
        slots = pool.free[: wanted.width]
        own_cores = pool.cores(slots)
        environment = dict(os.environ)
        if wanted.pool == "gpu":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.partition("#")[0] for slot in slots)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(own_cores) // job.world_size)))
        process = start(
            run_program,
            launch.command[1:],
            job.directory,
            launch.hydra,
            title=f"lockstep job {job.directory.name}",
            environment=environment,
            output=job.directory / OUTPUT,
            cores=own_cores,
            fresh=launch.config is not None and launch.config.fresh_processes,
        )
        return LocalHandle(process, pool, pool.take(wanted.width))


def run_program(arguments: Sequence[str], directory: Path, hydra: DictConfig | None) -> None:
    """Run `python PROGRAM resume=DIRECTORY [OVERRIDES]` in this process. `hydra`: Hydra's part of the config."""
    sys.argv[:] = arguments
    GlobalHydra.instance().clear()  # of the sweep, where the job is a fork of it
    setup_globals()
    if hydra is not None:
        config: Any = HydraConfig.instance()
        config.cfg = saved_config(directory, arguments[2:], hydra)
    runpy.run_path(arguments[0], run_name="__main__")


def saved_config(directory: Path, overrides: Sequence[str], hydra: DictConfig) -> DictConfig:
    """Return the config that `resume=DIRECTORY [OVERRIDES]` composes, for which Hydra would take a fifth of a second."""
    saved: Any = read_yaml(directory / FILE)
    config: Any = OmegaConf.unsafe_merge(hydra, saved, OmegaConf.from_dotlist([*overrides]))
    config.hydra.run.dir = str(directory)
    config.hydra.overrides.hydra = [f"hydra.run.dir={quote(str(directory))}"]
    OmegaConf.set_struct(config, True)
    return config


def run_composed(main: Callable[..., Any], config: Any) -> None:
    """Call a main function of Hydra's with a composed config, as Hydra's own launchers do. Raise what it raises."""
    context = HydraContext(None, Callbacks(config))  # pyright: ignore[reportArgumentType]  nothing asks for a loader
    _ = run_job(main, config, "hydra.run.dir", None, context).return_value
