"""The loop of a sweep: it starts the jobs, watches each until it ends, and tries it again where that is configured."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from lockstep.console import command_line
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.sweeps.jobs import FAILED, FINISHED, PREEMPTED, QUEUED, RUNNING, Job, JobState, SweepJobs
from lockstep.sweeps.local import Executor, Handle
from lockstep.sweeps.table import shorten

POLL = 0.1  # seconds between two looks at the jobs
PREEMPTIONS = 20  # times that one call continues a job that was preempted


class Runner:
    """Runs batches of jobs. `interrupted`: the name of the signal that has ended the sweep."""

    def __init__(self, sweep_jobs: SweepJobs, executor: Executor) -> None:
        self.sweep_jobs, self.executor = sweep_jobs, executor
        self.interrupted: str | None = None
        self._ends: Counter[tuple[str, str]] = Counter()  # how often a job has ended in a state
        self._waiting: list[Job] = []
        self._running: list[tuple[Job, Handle]] = []
        print(f"From any terminal: {command_line('lockstep', 'sweep', 'watch', sweep_jobs.directory)}", flush=True)

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
                        self._look_at(job, handle)
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
        """Start a job, or go on with one that is in the queue."""
        try:
            if job.queue is None:
                job.begin()
            handle = self.executor.start(job)
        except OSError as error:  # on a full disk, or if there can be no more processes
            self._conclude(job, Handle(), JobState(FAILED, f"could not be started ({error.strerror or error})"))
        else:
            self._running.append((job, handle))
            print(f"{job.directory.name}: started", flush=True)

    def _look_at(self, job: Job, handle: Handle) -> None:
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
        """Record the end. Try a failed job again, `retries` times; and resume a preempted one."""
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
