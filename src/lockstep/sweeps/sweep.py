"""A sweep from its first batch to its table: what `python train.py -m ...` does."""

import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.config.overrides import of_each_run
from lockstep.config.plan import Plan, visible_gpus
from lockstep.config.rules import Rule, integer, number, one_of
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.command_line import command_of
from lockstep.launchers.stop_signals import PREEMPTED
from lockstep.runs.locks import hold
from lockstep.runs.record import git_commit
from lockstep.runs.run import discard_made, keep_made
from lockstep.runs.validation import validated
from lockstep.sweeps.jobs import Job, directory_name, identity, pool_of
from lockstep.sweeps.manifest import FAILED, FINISHED, INTERRUPTED, WAITING, Manifest
from lockstep.sweeps.pool import Pool
from lockstep.sweeps.report import LiveTable, report
from lockstep.sweeps.runner import Runner

log = logging.getLogger(__name__)


def _is_gpus(value: Any) -> bool:
    if isinstance(value, list) or OmegaConf.is_list(value):
        return 0 < len(value) == len({str(gpu) for gpu in value})
    return value == "all" or (isinstance(value, int) and not isinstance(value, bool))


@dataclass(frozen=True)
class Settings:
    """hydra.launcher, checked."""

    gpus: Any
    jobs: int
    timeout: float | None
    retries: int
    on_failure: str
    same_code: bool
    dry_run: bool

    def __post_init__(self) -> None:
        rules = {
            "jobs": integer(1),
            "timeout": number(0.001).or_null(),
            "retries": integer(0),
            "on_failure": one_of("continue", "stop"),
            "gpus": Rule("accepted is all, a number, or a list of GPUs", _is_gpus),
        }
        for name, accepts in rules.items():
            if not accepts.test(getattr(self, name)):
                raise config_error(f"hydra.launcher.{name}", getattr(self, name), accepts.words)

    def gpu_slots(self) -> tuple[str, ...]:
        """As CUDA_VISIBLE_DEVICES names them: numbers, or the identifiers of GPUs or of their MIG parts."""
        named = tuple(name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())
        every = (named or tuple(map(str, range(visible_gpus()))))[: visible_gpus()]
        if self.gpus == "all":
            return every
        chosen = every[: self.gpus] if isinstance(self.gpus, int) else tuple(map(str, self.gpus))
        fits = 0 < self.gpus <= len(every) if isinstance(self.gpus, int) else set(chosen) <= set(every)
        if not fits:
            words = f"accepted is all, a number up to {len(every)}, or a list from [{', '.join(every)}]"
            raise config_error("hydra.launcher.gpus", self.gpus, words)
        return chosen


class Sweep:
    """One per process: a sweeper may call `launch` several times, and the table comes once, at the end."""

    _current: ClassVar["Sweep | None"] = None

    @classmethod
    def current(cls, config: DictConfig, loader: Any, settings: dict[str, Any]) -> "Sweep":
        if cls._current is None:
            cls._current = cls(config, loader, Settings(**settings))
        return cls._current

    @classmethod
    def end(cls) -> None:
        """After the sweeper's last batch: the report. Leaves by SystemExit unless all jobs have finished."""
        if cls._current is not None and cls._current.runner is not None:
            cls._current._end()
        discard_made()  # by a dry run

    def __init__(self, config: DictConfig, loader: Any, settings: Settings) -> None:
        self.config, self.loader, self.settings = config, loader, settings
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.jobs: dict[str, Job] = {}
        self.manifest = Manifest(self.directory)
        self.runner: Runner | None = None
        self._pools = {"cpu": Pool(tuple(map(str, range(settings.jobs)))), "gpu": Pool(settings.gpu_slots())}

    def launch(self, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Validates every job of the batch before it starts the first; then runs those that have not finished."""
        batch = [self._job(number, list(overrides)) for number, overrides in enumerate(job_overrides)]
        if self.settings.dry_run:
            for job in batch:
                print(f"{job.pool} x {job.width}  {job.world_size} process(es)  {job.directory}\n  {' '.join(job.overrides)}")
            return [_returned(job, math.nan) for job in batch]
        manifest, runner = self._open()
        todo = [job for job in batch if self._register(job, manifest)]
        if len(todo) < len(batch):
            log.info(f"{len(batch) - len(todo)} of {len(batch)} jobs have finished before")
        runner.run(todo)
        if runner.stopped:
            self._end()
        return [_returned(job, manifest.jobs[job.key].get("metric")) for job in batch]

    def _job(self, number: int, overrides: list[str]) -> Job:
        try:
            cfg, plan = self._composed(overrides)
            key = self._key(cfg)
        except ConfigError as error:
            raise ConfigError(f"job {number} ({' '.join(overrides)}): {error}") from error
        known = self.manifest.jobs.get(key)  # keeps its directory, however the overrides are spelled this time
        directory = self.directory / (known["directory"] if known else directory_name(overrides, key))
        pool, width = pool_of(plan)
        job = self.jobs[key] = Job(
            key=key,
            overrides=tuple(overrides),
            directory=directory,
            pool=pool,
            width=width,
            world_size=plan.world_size,
            optimized_metric=cfg.optimized_metric,
            optimized_mode=cfg.optimized_mode,
            data_dir=OmegaConf.select(cfg, "datamodule.data_dir"),
            command=tuple(command_of([*overrides, *of_each_run(self.config.hydra)], directory)),
        )
        return job

    def _composed(self, overrides: list[str]) -> tuple[DictConfig, Plan]:
        """The job's config as its own process will compose it, checked as that would."""
        full: Any = self.loader.load_sweep_config(self.config, overrides)
        HydraConfig.instance().set_config(full)
        try:
            cfg, plan = validated(full)
        finally:
            HydraConfig.instance().set_config(self.config)
        if plan.device_ids is not None:
            raise config_error("trainer.devices", list(plan.device_ids), "the launcher hands out the GPUs; accepted is a number")
        pool, width = pool_of(plan)
        if width > len(self._pools[pool].slots):
            raise config_error("trainer.devices", plan.devices, f"the launcher has {len(self._pools[pool].slots)} GPUs")
        return cfg, plan

    def _key(self, cfg: DictConfig) -> str:
        """The job's identity; the same point twice in the grid is two jobs, the second with -2."""
        key = base = identity(cfg)
        repeat, data_dir = 1, OmegaConf.select(cfg, "datamodule.data_dir")
        while key in self.jobs:
            if self.jobs[key].data_dir != data_dir:
                raise config_error(
                    "datamodule.data_dir", data_dir, "does not tell jobs apart; accepted is a sweep for each folder"
                )
            repeat += 1
            key = f"{base}-{repeat}"
        return key

    def _open(self) -> tuple[Manifest, Runner]:
        """Takes the directory, and what an earlier sweep has left in it."""
        if self.runner is not None:
            return self.manifest, self.runner
        keep_made()  # from here on the directory may be another sweep's
        self.directory.mkdir(parents=True, exist_ok=True)
        hold(self.directory, "hydra.sweep.dir")
        manifest = Manifest(self.directory)
        commit = git_commit()
        if manifest.jobs and manifest.git_commit != commit:
            line = f"the sweep was last run with commit {manifest.git_commit}, this is {commit}"
            if self.settings.same_code:
                raise config_error("hydra.launcher.same_code", "true", line)
            log.info(line)
        manifest.settle()
        manifest.git_commit = commit
        manifest.add_command([str(Path(sys.argv[0]).absolute()), *sys.argv[1:]], Path.cwd())
        self.manifest, self.runner = manifest, Runner(manifest, self._pools, self.settings, LiveTable(manifest, self.directory))
        return self.manifest, self.runner

    def _register(self, job: Job, manifest: Manifest) -> bool:
        """Does this job have to run: is it new, or has it not finished?"""
        known = manifest.jobs.get(job.key)
        if known is not None and known["status"] == FINISHED and (job.directory / "metrics.json").is_file():
            return False
        if known is None:
            manifest.jobs[job.key] = {
                "number": len(manifest.jobs),
                "status": WAITING,
                "reason": None,
                "metric": None,
                "attempts": [],
            }
        directory = str(job.directory.relative_to(self.directory))
        facts = {"devices": job.world_size, "optimized_metric": job.optimized_metric, "optimized_mode": job.optimized_mode}
        manifest.update(job.key, overrides=list(job.overrides), directory=directory, command=list(job.command), **facts)
        return True

    def _end(self) -> None:
        report(self.manifest, self.directory, list(self.jobs))
        states = [self.manifest.jobs[key]["status"] for key in self.jobs if key in self.manifest.jobs]
        if self.runner is not None and self.runner.stopped:
            console.say(
                f"The sweep was stopped: {self.runner.stopped}. Resume it: python scripts/sweep.py resume {self.directory}"
            )
        if INTERRUPTED in states or (self.runner is not None and self.runner.was_interrupted):
            raise SystemExit(PREEMPTED)
        if FAILED in states or WAITING in states:
            raise SystemExit(1)


def _returned(job: Job, metric: float | None) -> JobReturn:
    """What a sweeper gets to see: the metric; NaN for a job that has none, so that the others go on."""
    value = math.nan if metric is None else metric
    return JobReturn(
        overrides=list(job.overrides), working_dir=str(job.directory), _return_value=value, status=JobStatus.COMPLETED
    )
