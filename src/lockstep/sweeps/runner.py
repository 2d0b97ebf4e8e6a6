"""The loop of a sweep: starts its jobs, whoever runs them, follows each to its end, and tries again what that is for."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from omegaconf import OmegaConf

from lockstep.console import command_line
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.sweeps.jobs import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, JobState
from lockstep.sweeps.local import Executor, Handle
from lockstep.sweeps.sweep_jobs import Job, SweepJobs
from lockstep.sweeps.table import shorten

POLL = 0.1  # seconds between two looks at the jobs
PREEMPTIONS = 20  # times that one call continues a job that was preempted
GRACE = 12.0  # seconds a job gets to end by itself, after its own deadline for saving, before it is killed


class Runner:
    """Runs batches of jobs.

    Attributes:
        stopped: Why no more jobs are to be started.
        was_interrupted: True if a signal has ended the sweep.
    """

    def __init__(self, sweep_jobs: SweepJobs, executor: Executor) -> None:
        self.sweep_jobs, self.executor = sweep_jobs, executor
        self.stopped: str | None = None
        self.was_interrupted = False
        self._shown: dict[str, tuple[str, int]] = {}  # states and attempts that were printed
        self._ended: Counter[tuple[str, str]] = Counter()  # how often a job has ended in a state
        self._waiting: list[Job] = []
        self._running: list[tuple[Job, Handle]] = []
        print(f"From any terminal: {command_line('lockstep', 'sweep', 'watch', sweep_jobs.directory)}", flush=True)

    def run(self, jobs: Sequence[Job]) -> None:
        self._waiting = [*jobs]
        with STOP_SIGNALS.deferring() as received:
            try:
                while self._running or (self._waiting and not self.stopped):
                    self._obey(received)
                    while not (self.stopped or received) and (job := self.executor.choose(self._waiting)) is not None:
                        self._waiting.remove(job)
                        self.start(job)
                    for job, handle in self._running[:]:
                        self._look_at(job, handle)
                    self._print_changes(jobs)
                    time.sleep(POLL)
            finally:
                if not self.executor.outlives:
                    self._kill_all()
                self._print_changes(jobs)
        if self.was_interrupted:  # a terminal that closes says so more than once, and there is the table to write
            STOP_SIGNALS.leave()

    def _print_changes(self, jobs: Sequence[Job]) -> None:
        """Print a line for each begun job whose state or attempt has changed."""
        ended = self.sweep_jobs.counts[FINISHED] + self.sweep_jobs.counts[FAILED]
        for job in jobs:
            if job.attempt and self._shown.get(job.key) != (job.status, job.attempt):
                self._shown[job.key] = (job.status, job.attempt)
                place = f"{ended} of {len(self.sweep_jobs.jobs)}  " if job.status in (FINISHED, FAILED) else ""
                metric = f"  {job.optimized_metric} {job.metric:.6g}" if job.metric is not None else ""
                why = f"  {shorten(job.reason)}" if job.reason else ""
                print(f"{place}{job.directory.name}: {job.status}{metric}{why}", flush=True)

    def interrupt(self, number: int) -> None:
        """Note that a signal has ended the sweep."""
        self.was_interrupted, self.stopped = True, f"interrupted by {signal.Signals(number).name}"

    def _obey(self, received: Sequence[int]) -> None:
        """The first request to stop ends the jobs, or leaves them to the queue; a second Ctrl-C kills them."""
        if received and not self.was_interrupted:
            self.interrupt(received[0])
            if self.executor.outlives:
                self._running.clear()
                return
            print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
            for job, handle in self._running:
                handle.end_for(JobState(INTERRUPTED, self.stopped), _stop_deadline(job) + GRACE)
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
        except OSError as error:  # no process, or no file: its disk is full, say
            self._conclude(job, Handle(), JobState(FAILED, f"could not be started ({error.strerror or error})"))
        else:
            self._running.append((job, handle))

    def _look_at(self, job: Job, handle: Handle) -> None:
        if (end := handle.poll()) is not None:
            self._running.remove((job, handle))
            self._conclude(job, handle, end)
            return
        timeout, now = self.executor.timeout, time.monotonic()
        if timeout is not None and handle.ended_for is None and now - handle.began > timeout:
            handle.end_for(JobState(FAILED, f"no end within {timeout:g} s"), GRACE)
        if now > handle.kill_at:
            handle.kill_at = float("inf")
            handle.stop(kill=True)
        job.status, job.reason = RUNNING if handle.waits is None else WAITING, handle.waits

    def _conclude(self, job: Job, handle: Handle, end: int | JobState) -> None:
        """Note the end. Try a job that has failed again, `retries` times; and a preempted one, which goes on."""
        job.end(handle.ended_for or end)
        job.save_end()
        self._ended[job.key, job.status] += 1
        most = self.executor.retries if job.status == FAILED else PREEMPTIONS
        goes_on = job.status == FAILED or (job.status == INTERRUPTED and not (self.stopped or handle.is_cancelled))
        if goes_on and self._ended[job.key, job.status] <= most:
            self._waiting.append(job)


def _stop_deadline(job: Job) -> float:
    """Return the seconds in which a job that was asked to stop ends by itself: none without the guard."""
    guard = None if job.config is None else OmegaConf.select(job.config, "guards.preemption")
    return 0.0 if guard is None else float(guard.get("deadline") or "inf")
