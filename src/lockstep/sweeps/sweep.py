"""A sweep from its first batch to its table: what `python train.py -m ...` does."""

import copy
import logging
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.config.overrides import chooses_group, constants, override_key, quote
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.runs.fork import find_checkpoint
from lockstep.runs.resume import read_start
from lockstep.runs.saved import fix_times
from lockstep.runs.validation import check_run_dir, validated
from lockstep.sweeps.jobs import (
    FAILED,
    FINISHED,
    OUTSIDE,
    PREEMPTED,
    QUEUED,
    RUNNING,
    Job,
    JobLaunch,
    JobState,
    SweepJobs,
    computed_config,
    directory_name,
    identity,
)
from lockstep.sweeps.local import Executor, Handle, create_executor
from lockstep.sweeps.table import print_table, shorten, write_results

log = logging.getLogger(__name__)
POLL = 0.1  # seconds between two polls of the jobs
PREEMPTIONS = 20  # how often one call resumes a preempted job


class Sweep:
    """One per process: a sweeper may call `launch` several times, and the table comes once, at the end."""

    def __init__(self, config: DictConfig, loader: Any) -> None:
        self.config, self.loader = config, loader
        self.executor, given = create_executor(config), OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        self.constants = constants(given)  # pyright: ignore[reportArgumentType]
        self.directory = Path(str(config.hydra.sweep.dir)).absolute()
        self.sweep_jobs = SweepJobs(self.directory, is_running=False)
        self.runner: Runner | None = None
        self._composed: dict[tuple[str, ...], DictConfig] = {}  # by the overrides that choose groups

    def launch(self, job_overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Check all jobs of the batch, then run them. Return their metrics to a sweeper of Hydra's, NaN for a job without one."""
        if not job_overrides:
            asked = [item for item in sys.argv[1:] if "glob(" in item] or sys.argv[1:]
            raise ConfigError(f"{' '.join(asked)}: no job comes of this; use what matches or names at least one option")
        metrics = [math.nan if job.metric is None else job.metric for job in self.run(self.check(job_overrides))]
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=metric) for metric in metrics]

    def check(self, job_overrides: Sequence[Sequence[str]]) -> list[Job]:
        """Compose all jobs. Raise ConfigError for the first that can't start."""
        jobs = []
        for number, overrides in enumerate(job_overrides):
            try:
                jobs.append(self.compose(overrides))
            except ConfigError as error:
                raise ConfigError(f"job {number} ({' '.join(overrides)}): {error}") from error
        return jobs

    def compose(self, overrides: Sequence[str]) -> Job:
        """Compose a job and check that it can start. Raise ConfigError."""
        swept = [item for item in overrides if item not in self.constants] or [*overrides]
        outside = [item for item in overrides if override_key(item) in OUTSIDE]
        for item in {*outside} - self.constants:
            words = "does not tell jobs apart; use a sweep for each value"
            raise config_error(override_key(item), item.partition("=")[2], words)
        full = self._load(overrides)
        cfg, plan, key = self._checked(full)
        known = self.sweep_jobs.jobs.get(key)  # its overrides may be spelled in another way this time
        directory = self.directory / directory_name(swept, key) if known is None else known.directory
        resume = (f"resume={quote(str(directory))}", *(item.lstrip("+") for item in outside))
        launch = JobLaunch(
            command=(sys.executable, str(Path(sys.argv[0]).absolute()), *resume),
            resources=self.executor.resources(full, plan),
            config=cfg,
            hydra=OmegaConf.masked_copy(full, ["hydra"]),
            global_batch_size=plan.global_batch_size,
        )
        metric = cfg.optimized_metric, cfg.optimized_mode
        return Job(directory, key, [*overrides], plan.world_size, *metric, swept=swept, launch=launch)

    def _checked(self, full: DictConfig) -> tuple[DictConfig, Plan, str]:
        """Return the config without Hydra's part, the plan and the identity of a job, as its own process will check it."""
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
            read_start(cfg, "fork", find_checkpoint(cfg.fork)[0])
        if cfg.optimized_metric is None:
            raise config_error("optimized_metric", "null", "a sweep compares its jobs; use a metric that they log")
        return cfg, plan, key

    def _load(self, overrides: Sequence[str]) -> DictConfig:
        """Return the config that Hydra composes of the overrides. Hydra takes a fifth of a second, so it composes each choice of
        groups once; other values are then set in a copy."""
        parsed = OverridesParser.create().parse_overrides([*overrides])
        task = [one for one in parsed if not one.is_hydra_override()]
        values = [one for one in task if one.type == OverrideType.CHANGE and not chooses_group(one.input_line or "")]
        rest = tuple(one.input_line or "" for one in parsed if one not in values)
        if rest not in self._composed:
            self._composed[rest] = self.loader.load_sweep_config(self.config, [*rest])
        full: Any = copy.deepcopy(self._composed[rest])
        for one in values:
            if OmegaConf.is_dict(OmegaConf.select(full, one.key_or_group, default=full, throw_on_resolution_failure=False)):
                return self.loader.load_sweep_config(self.config, [*overrides])  # more than a value, or an unknown key
            OmegaConf.update(full, one.key_or_group, one.value())
        full.hydra.overrides.task = [one.input_line for one in task]
        full.hydra.job.override_dirname = get_overrides_dirname(task, **full.hydra.job.config.override_dirname)
        return full

    def run(self, jobs: Sequence[Job]) -> list[Job]:
        """Run the jobs that have not finished, equal jobs once; return all of them with their states."""
        batch = [*{job.key: job for job in jobs}.values()]
        if self.executor.dry_run:
            for job in batch:
                processes = f"{job.world_size} process{'es' * (job.world_size > 1)}"
                print(f"{processes} on", *job.launch.resources, f" {job.directory}\n  {' '.join(job.overrides)}")
            return [*jobs]
        with STOP_SIGNALS.deferring():  # until all jobs are registered, so that the sweep can be resumed
            if self.runner is None:
                self.executor.open(self.sweep_jobs)
                self.runner = Runner(self.sweep_jobs, self.executor)
            todo = self.sweep_jobs.register(batch)
        self.runner.run(todo)
        if self.runner.interrupted is not None:
            self.end(f"interrupted by {self.runner.interrupted}", ExitCode.PREEMPTED)
        return [self.sweep_jobs.jobs[job.key] for job in jobs]

    def break_off(self, error: BaseException) -> None:
        """End the sweep with its table after a signal or a bug between two batches."""
        if isinstance(error, Preempted):
            self.end(f"interrupted by {signal.Signals(error.number).name}", ExitCode.PREEMPTED)
        elif self.runner is not None:
            log.error("The sweep is broken off:", exc_info=error)
            self.end(f"{type(error).__name__}: {error}", ExitCode.FAILED)

    def end(self, stopped: str | None = None, code: int | None = None) -> None:
        """Print and write the results of all batches. Exit with `code`, by default the code that the jobs' states give."""
        if self.runner is None:
            return
        STOP_SIGNALS.leave()
        print_table(self.sweep_jobs)
        write_results(self.sweep_jobs)
        if (best := next(iter(self.sweep_jobs.ranked), None)) is not None and best.metric is not None:
            print(f"best: {console.relative(best.directory)}")
        print(f"results: {console.relative(self.directory / 'results.csv')}", flush=True)
        reports = [("lockstep", "report")] if len({job.world_size for job in self.sweep_jobs.jobs.values()}) > 1 else []
        console.show_next(self.directory, *reports)
        if stopped is not None:
            resume = console.command_line("lockstep", "sweep", "resume", self.directory)
            console.say(f"The sweep was stopped: {stopped}. Resume it: {resume}")
        if code := self.sweep_jobs.exit_code if code is None else code:
            raise SystemExit(code)


class Runner:
    """Start jobs, watch each until it ends, and retry failed jobs and resume preempted ones.

    interrupted: name of the signal that has ended the sweep, or None.
    """

    def __init__(self, sweep_jobs: SweepJobs, executor: Executor) -> None:
        self.sweep_jobs, self.executor = sweep_jobs, executor
        self.interrupted: str | None = None
        self._ends: Counter[tuple[str, str]] = Counter()  # how often a job has ended in a state
        self._waiting: list[Job] = []
        self._running: list[tuple[Job, Handle]] = []
        print(f"From any terminal: {console.command_line('lockstep', 'sweep', 'watch', sweep_jobs.directory)}", flush=True)

    def run(self, jobs: Sequence[Job]) -> None:
        """Return when all jobs have ended, or a signal has interrupted the sweep."""
        self._waiting = [*jobs]
        with STOP_SIGNALS.deferring() as received:
            try:
                while self._running or (self._waiting and not self.interrupted):
                    self._obey(received)
                    while not received and (job := self.executor.choose(self._waiting)) is not None:
                        self._waiting.remove(job)
                        self.start(job)
                    for job, handle in self._running[:]:
                        self._poll(job, handle)
                    time.sleep(POLL)
            finally:
                if not self.executor.outlives:
                    self._kill_all()
        if self.interrupted:  # a closed terminal sends several signals, and the table is not written yet
            STOP_SIGNALS.leave()

    def _obey(self, received: Sequence[int]) -> None:
        """Ask the jobs to end after the first signal, or leave them to the queue; kill them after a second Ctrl-C."""
        if received and not self.interrupted:
            self.interrupted = signal.Signals(received[0]).name
            if self.executor.outlives:
                self._running.clear()
                return
            print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
            for _, handle in self._running:
                handle.ended_for = JobState(PREEMPTED, f"interrupted by {self.interrupted}")
                handle.stop()
        if signal.SIGINT in received[1:]:  # a terminal that closes sends several SIGHUPs
            self._kill_all()

    def _kill_all(self) -> None:
        for _, handle in self._running:
            handle.stop(kill=True)

    def start(self, job: Job) -> None:
        """Start a job, or watch one that is in the queue already."""
        try:
            if job.queue is None:
                job.begin()
            handle = self.executor.start(job)
        except OSError as error:  # on a full disk, or if there can be no more processes
            self._conclude(job, Handle(), JobState(FAILED, f"could not be started ({error.strerror or error})"))
        else:
            self._running.append((job, handle))
            print(f"{job.directory.name}: started", flush=True)

    def _poll(self, job: Job, handle: Handle) -> None:
        if (end := handle.poll()) is not None:
            self._running.remove((job, handle))
            self._conclude(job, handle, end)
            return
        limit = self.executor.timeout
        if limit is not None and handle.ended_for is None and time.monotonic() - handle.began > limit:
            handle.ended_for = JobState(FAILED, f"no end within {limit:g} s")
            handle.stop(kill=True)
        job.status, job.reason = RUNNING if handle.waits is None else QUEUED, handle.waits

    def _conclude(self, job: Job, handle: Handle, end: int | JobState) -> None:
        """Record the end. Retry a failed job `retries` times, and resume a preempted one."""
        job.end(handle.ended_for or end)
        job.save_end()
        ended = self.sweep_jobs.counts[FINISHED] + self.sweep_jobs.counts[FAILED]
        metric = f"  {job.optimized_metric} {job.metric:.6g}" if job.metric is not None else ""
        why = f"  {'ended by ' if job.status == FINISHED else ''}{shorten(job.reason)}" if job.reason else ""
        print(f"{ended} of {len(self.sweep_jobs.jobs)}  {job.directory.name}: {job.status}{metric}{why}", flush=True)
        self._ends[job.key, job.status] += 1
        most = {FAILED: self.executor.retries, PREEMPTED: 0 if handle.is_cancelled else PREEMPTIONS}.get(job.status, 0)
        if self._ends[job.key, job.status] <= most:
            self._waiting.append(job)
