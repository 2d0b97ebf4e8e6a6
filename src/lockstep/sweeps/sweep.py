"""A sweep from its first batch to its table: what `python train.py -m ...` does."""

import contextlib
import logging
import math
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.config.overrides import constants, override_key, quote
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.runs.fork import find_checkpoint
from lockstep.runs.resume import check_length
from lockstep.runs.saved import fix_times
from lockstep.runs.validation import check_run_dir, validated
from lockstep.sweeps.jobs import OUTSIDE, computed_config, directory_name, identity
from lockstep.sweeps.local import choose_pool, create_executor
from lockstep.sweeps.runner import Runner
from lockstep.sweeps.sweep_jobs import Job, SweepJobs
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

    def __init__(self, config: DictConfig, loader: Any) -> None:
        self.config, self.loader = config, loader
        self.executor, given = create_executor(config), OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        self.constants = constants(given)  # pyright: ignore[reportArgumentType]
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.sweep_jobs = SweepJobs(self.directory, is_running=False)
        self.runner: Runner | None = None

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """End the sweep with its table when a signal or a bug breaks it off between two batches. Raise a refusal again, and all
        errors before the first batch."""
        try:
            yield
        except (KeyboardInterrupt, Preempted, Exception) as error:
            if self.runner is None or isinstance(error, ConfigError):
                raise
            if isinstance(error, Exception):
                log.exception("The sweep is broken off:")
                self.runner.stopped = f"{type(error).__name__}: {error}"
            else:
                self.runner.interrupt(error.number if isinstance(error, Preempted) else signal.SIGINT)
            self.end()

    def launch(self, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Check every job of the batch before the first one starts; then run those that have not finished, the same point once.
        Raise RefusedJob, and change nothing, if one can't start."""
        if not job_overrides:
            asked = [item for item in sys.argv[1:] if "glob(" in item] or sys.argv[1:]
            raise ConfigError(f"{' '.join(asked)}: no job comes of this; use what matches or names at least one option")
        jobs = self.check(job_overrides)
        batch = [*{job.key: job for job in jobs}.values()]
        if self.executor.dry_run:
            for job in batch:
                print(*job.resources, f" {job.world_size} process(es)  {job.directory}\n  {' '.join(job.overrides)}")
            return [self._returned(job) for job in jobs]
        with STOP_SIGNALS.deferring():  # until it can be continued
            runner = self.open()
            todo = self.sweep_jobs.register(batch)
        runner.run(todo)
        if runner.stopped:
            self.end()
        return [self._returned(job) for job in jobs]

    def check(self, job_overrides: Sequence[Sequence[str]]) -> list[Job]:
        """Raise RefusedJob for the first job that can't start."""
        return [self._job(number, list(overrides)) for number, overrides in enumerate(job_overrides)]

    def _returned(self, job: Job) -> JobReturn:
        """Return what a sweeper gets to see: the metric; NaN for a job that has none, so that the others go on."""
        known = self.sweep_jobs.jobs.get(job.key, job)
        value = math.nan if known.metric is None else known.metric
        return JobReturn([*job.overrides], working_dir=str(known.directory), _return_value=value, status=JobStatus.COMPLETED)

    def _job(self, number: int, overrides: list[str]) -> Job:
        swept = [override for override in overrides if override not in self.constants]
        try:
            if folders := [item.partition("=")[2] for item in swept if override_key(item) == _DATA_DIR]:
                raise config_error(_DATA_DIR, folders[0], "does not tell jobs apart; use a sweep for each folder")
            full, cfg, plan, key = self._composed(overrides)
            resources = self.executor.resources(full, plan)
            if cfg.optimized_metric is None:
                raise config_error("optimized_metric", "null", "a sweep compares its jobs; use a metric that they log")
        except ConfigError as error:
            raise RefusedJob(f"job {number} ({' '.join(overrides)}): {error}", number) from error
        swept = swept or overrides
        known = self.sweep_jobs.jobs.get(key)  # its overrides may be spelled in another way this time
        directory = self.directory / directory_name(swept, key) if known is None else known.directory
        outside = [item.lstrip("+") for item in overrides if override_key(item) in OUTSIDE]
        pool, width = choose_pool(plan)
        return Job(
            directory,
            key,
            overrides,
            plan.world_size,
            cfg.optimized_metric,
            cfg.optimized_mode,
            command=(sys.executable, str(Path(sys.argv[0]).absolute()), f"resume={quote(str(directory))}", *outside),
            config=cfg,
            hydra=full.hydra,
            pool=pool,
            width=width,
            resources=resources,
            swept_keys=[override_key(item) for item in swept],
            global_batch_size=plan.global_batch_size,
        )

    def _composed(self, overrides: list[str]) -> tuple[DictConfig, DictConfig, Plan, str]:
        """Return the job's config as its own process composes and checks it, with Hydra's part and without, the plan, and the
        job's identity."""
        full: Any = self.loader.load_sweep_config(self.config, overrides)
        check_run_dir(full)
        hydra: Any = HydraConfig.instance()
        of_sweep, hydra.cfg = hydra.cfg, full  # ${hydra:} has the values of the job; its set_config copies
        try:
            cfg, plan = validated(full, full.hydra, self.executor.node_gpus(full))
            key = identity(computed_config(cfg))
            fix_times(cfg)
        finally:
            hydra.cfg = of_sweep
        if cfg.get("fork") is not None:
            checkpoint = find_checkpoint(cfg.fork)
            check_length(cfg, checkpoint.epoch, checkpoint.path)
        return full, cfg, plan, key

    def open(self) -> Runner:
        """Find out, once, how an earlier sweep process has left the jobs."""
        if self.runner is None:
            self.executor.open(self.sweep_jobs)
            self.runner = Runner(self.sweep_jobs, self.executor)
        return self.runner

    def end(self) -> None:
        """Write the results, after the sweeper's last batch. Leave by SystemExit unless all jobs have finished."""
        sweep_jobs = self.sweep_jobs
        if (runner := self.runner) is None:
            return
        STOP_SIGNALS.leave()
        print_table(sweep_jobs)
        write_results(sweep_jobs)
        if (best := next(iter(sweep_jobs.ranked), None)) is not None and best.metric is not None:
            print(f"best: {console.relative(best.directory)}")
        print(f"results: {console.relative(self.directory / 'results.csv')}", flush=True)
        if any(self.directory.glob("*/tensorboard")):
            print(f"Next:\n  tensorboard --logdir {shlex.quote(console.relative(self.directory))}", flush=True)
        if runner.stopped:
            resume = console.command_line("lockstep", "sweep", "resume", self.directory)
            console.say(f"The sweep was stopped: {runner.stopped}. Resume it: {resume}")
        code = ExitCode.PREEMPTED if runner.was_interrupted else sweep_jobs.exit_code
        if code or runner.stopped:
            raise SystemExit(code or ExitCode.FAILED)
