"""A sweep from its first batch to its table: what `python train.py -m ...` does."""

import contextlib
import json
import logging
import math
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.config.overrides import constants, override_key, quote
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.runs.continuation import check_length
from lockstep.runs.fork import origin_of
from lockstep.runs.saved import read_config
from lockstep.runs.validation import check_run_dir, validated
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.jobs import FINISHED, OUTSIDE, Job, computed_config, directory_name, identity, sweep_exit_code
from lockstep.sweeps.local import Executor, choose_pool
from lockstep.sweeps.runner import Runner
from lockstep.sweeps.settings import Settings
from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import print_table, write_results

log = logging.getLogger(__name__)
_DATA_DIR = "datamodule.data_dir"


class RefusedJob(ConfigError):
    """One job of a batch can't start as it is configured: the `number`th of those that were handed over; none was started."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Sweep:
    """One per process: a sweeper may call `launch` several times, and the table comes once, at the end."""

    _current: ClassVar["Sweep | None"] = None

    @classmethod
    def current(cls, config: DictConfig, loader: Any, settings: Settings, executor: Executor) -> "Sweep":
        if cls._current is None:
            cls._current = cls(config, loader, settings, executor)
        return cls._current

    @classmethod
    def end(cls) -> None:
        """Write the results, after the sweeper's last batch. Leave by SystemExit unless all jobs have finished. Raise ConfigError
        where there was none."""
        if (sweep := cls._current) is not None:
            if sweep.planned:
                sweep._open()
            elif not sweep.keys:
                raise _no_jobs()
            if sweep.runner is not None:
                sweep._end(sweep.runner)

    @classmethod
    @contextlib.contextmanager
    def answering(cls) -> Iterator[None]:
        """End the sweep with its table when something breaks it off between two batches, a signal or a full disk say. Raise a
        refusal again, and all errors before the first batch."""
        try:
            yield
        except ConfigError:
            raise
        except (KeyboardInterrupt, Preempted, Exception) as error:
            if cls._current is None or (runner := cls._current.runner) is None:
                raise
            if not isinstance(error, Exception):
                runner.interrupt(error.number if isinstance(error, Preempted) else signal.SIGINT)
            elif isinstance(error, OSError):
                runner.stopped = f"{error.filename or cls._current.directory}: {error.strerror or error}"
            else:
                log.exception("A bug:")
                runner.stopped = " ".join(f"{type(error).__name__}: {error}".split())
            cls._current._end(runner)

    @classmethod
    def expect(cls, jobs: int) -> None:
        """Note that a sweeper hands out that many jobs one by one, and none twice: the jobs of earlier calls in this directory
        count as this one's, in the table and for the exit code."""
        if cls._current is not None:
            cls._current.planned = jobs

    def __init__(self, config: DictConfig, loader: Any, settings: Settings, executor: Executor) -> None:
        self.config, self.settings, self.executor = config, settings, executor
        self.configs = JobConfigs(config, loader)
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.keys: set[str] = set()  # the jobs of this call
        self.planned = 0
        self.sweep_jobs = SweepJobs(self.directory, is_running=False)
        self.runner: Runner | None = None

    def launch(self, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Check every job of the batch before the first one starts; then run those that have not finished, the same point once.
        Raise RefusedJob, and change nothing, if one can't start."""
        if not job_overrides:
            raise _no_jobs()
        jobs = self.check(job_overrides)
        batch: dict[str, Job] = {}
        for job in jobs:
            batch.setdefault(job.key, job)
        if len(batch) < len(jobs):
            log.warning(f"{len(jobs) - len(batch)} of {len(jobs)} jobs are those of other ones, spelled again: each is run once")
        returned = dict(zip(batch, self._run([*batch.values()]), strict=True))
        return [returned[job.key] for job in jobs]

    def check(self, job_overrides: Sequence[Sequence[str]]) -> list[Job]:
        """Raise RefusedJob for the first job that can't start."""
        return [self._job(number, list(overrides)) for number, overrides in enumerate(job_overrides)]

    def _run(self, batch: list[Job]) -> list[JobReturn]:
        self.keys |= {job.key for job in batch}
        if self.settings.dry_run:
            for job in batch:
                print(f"{' '.join(job.resources)}  {job.world_size} process(es)  {job.directory}\n  {' '.join(job.overrides)}")
            return [_job_return(job, None) for job in batch]
        if is_first := self.runner is None:
            self.executor.check(batch)
        try:
            with STOP_SIGNALS.deferring():  # until it can be continued
                runner = self._open()
                if (line := self.sweep_jobs.describe_changed(batch)) is not None:
                    log.warning(line)
                todo = self.sweep_jobs.register(batch)
        except OSError as error:
            if not is_first:
                raise
            raise config_error("hydra.sweep.dir", self.directory, f"can't be written ({error.strerror})") from error
        if len(todo) < len(batch):
            log.info(f"{len(batch) - len(todo)} of {len(batch)} jobs have finished before")
        runner.run(todo)
        if runner.stopped:
            self._end(runner)
        return [_job_return(job, self.sweep_jobs.jobs[job.key].metric) for job in batch]

    def _job(self, number: int, overrides: list[str]) -> Job:
        given: Any = OmegaConf.to_container(self.config.hydra.overrides.task, resolve=False)
        constant = constants(given)
        swept = [override for override in overrides if override not in constant]
        try:
            if folders := [item.partition("=")[2] for item in swept if override_key(item) == _DATA_DIR]:
                raise config_error(_DATA_DIR, folders[0], "does not tell jobs apart; use a sweep for each folder")
            full, cfg, plan = self._composed(overrides)
            resources = self.executor.resources(full, plan)
            if cfg.optimized_metric is None:
                raise config_error("optimized_metric", "null", "a sweep compares its jobs; use a metric that they log")
        except ConfigError as error:
            raise RefusedJob(f"job {number} ({' '.join(overrides)}): {error}", number) from error
        config = computed_config(cfg)
        key = identity(config)
        known = self.sweep_jobs.jobs.get(key)  # its overrides may be spelled in another way this time
        directory = self.directory / directory_name(swept or overrides, key) if known is None else known.directory
        goes_on = known is not None and known.status != FINISHED
        pool, width = choose_pool(plan)
        return Job(
            key=key,
            overrides=tuple(overrides),
            directory=directory,
            pool=pool,
            width=width,
            world_size=plan.world_size,
            optimized_metric=cfg.optimized_metric,
            optimized_mode=cfg.optimized_mode,
            command=(
                *(sys.executable, str(Path(sys.argv[0]).absolute()), f"resume={quote(str(directory))}"),
                *(_given_anew(full, directory) if goes_on else ()),
            ),
            composed=_in_directory(full, directory),
            global_batch_size=plan.global_batch_size,
            config=config,
            swept=tuple(map(override_key, swept or overrides)),
            fresh=cfg.fresh_processes,
            stop_deadline=_stop_deadline(cfg),
            resources=resources,
        )

    def _composed(self, overrides: list[str]) -> tuple[DictConfig, DictConfig, Plan]:
        """Return the job's config as its own process composes and checks it, with Hydra's part and without; and the plan."""
        full: Any = self.configs.compose(overrides)
        check_run_dir(full)
        asked: Any = HydraConfig.instance()
        own, asked.cfg = asked.cfg, full  # its set_config copies
        try:
            cfg, plan = validated(full, full.hydra, self.executor.node_gpus(full))
        finally:
            asked.cfg = own
        if (origin := origin_of(cfg)) is not None:
            check_length(cfg, origin.epoch, origin.path)
        if plan.device_ids is not None:
            raise config_error("trainer.devices", list(plan.device_ids), "the launcher hands out the GPUs; use a number")
        return full, cfg, plan

    def _open(self) -> Runner:
        """Find out, once, how an earlier sweep process has left the jobs."""
        if self.runner is None:
            self.executor.open(self.sweep_jobs)
            self.sweep_jobs.planned = self.planned
            self.runner = Runner(self.sweep_jobs, self.executor, self.settings)
        return self.runner

    def _end(self, runner: Runner) -> None:
        STOP_SIGNALS.leave()
        sweep_jobs = self.sweep_jobs
        write_results(sweep_jobs)
        print_table(sweep_jobs)
        if (best := sweep_jobs.best) is not None and best.directory.is_dir():
            print(f"best: {console.relative(best.directory)}")
        print(f"results: {console.relative(self.directory / 'results.csv')}", flush=True)
        if any(self.directory.glob("*/tensorboard")):
            print(f"Next:\n  tensorboard --logdir {shlex.quote(console.relative(self.directory))}", flush=True)
        if runner.stopped:
            console.say(f"The sweep was stopped: {runner.stopped}. Resume it: {sweep_command('resume', self.directory)}")
            if queued := sweep_jobs.in_queue():
                take_out = f"Take them out of it: {sweep_command('cancel', self.directory)}"
                console.say(f"{len(queued)} job(s) stay in the queue. {take_out}")
        own = sweep_jobs.jobs if self.planned else self.keys  # those of all calls, where a sweeper takes several
        code = sweep_exit_code({view.status for key, view in sweep_jobs.jobs.items() if key in own})
        if runner.was_interrupted:
            code = ExitCode.PREEMPTED
        if code or runner.stopped:
            raise SystemExit(code or ExitCode.FAILED)


def _in_directory(full: DictConfig, directory: Path) -> DictConfig:
    """Return a job's config, Hydra's own part with it, as the job itself composes it."""
    config = full.copy()
    config.hydra.mode, config.hydra.run.dir = RunMode.RUN, str(directory)
    config.hydra.overrides.hydra = [*config.hydra.overrides.hydra, "hydra.mode=RUN", f"hydra.run.dir={quote(str(directory))}"]
    return config


def _given_anew(full: DictConfig, directory: Path) -> list[str]:
    """Return overrides for a run that goes on: of keys that do not tell jobs apart, and have other values than it has saved."""
    overrides = []
    with contextlib.suppress(ConfigError):
        saved: Any = read_config(directory) or {}
        for key in OUTSIDE:
            before, now = OmegaConf.select(saved, key, default=...), OmegaConf.select(full, key, default=...)
            if ... not in (before, now) and before != now:
                overrides.append(f"{key}={quote(now) if isinstance(now, str) else json.dumps(now)}")
    return overrides


def _no_jobs() -> ConfigError:
    """Return why a sweep has no jobs: `model=glob(zzz*)` matches nothing, say."""
    asked = [item for item in sys.argv[1:] if "glob(" in item] or sys.argv[1:]
    return ConfigError(f"{' '.join(asked)}: no job comes of this; use what matches or names at least one option")


def _stop_deadline(cfg: DictConfig) -> float:
    """Return 0 without the guard, where a run ends at once; infinity for a deadline of null."""
    guard = OmegaConf.select(cfg, "guards.preemption")
    return 0.0 if guard is None else float(guard.get("deadline") or math.inf)


def sweep_command(what: str, directory: Path) -> str:
    """Return what to type, from the working directory, in a shell."""
    return console.command_line("scripts/sweep.py", what, directory)


def _job_return(job: Job, metric: float | None) -> JobReturn:
    """Return what a sweeper gets to see: the metric; NaN for a job that has none, so that the others go on."""
    value, overrides = math.nan if metric is None else metric, list(job.overrides)
    return JobReturn(overrides, working_dir=str(job.directory), _return_value=value, status=JobStatus.COMPLETED)
