"""The loop of a sweep: starts its jobs, whoever runs them, follows each to its end, and tries again what that is for."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.console import command_line
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.sweeps.jobs import FAILED, INTERRUPTED, RUNNING, WAITING, Exit, JobState
from lockstep.sweeps.local import Executor, Handle
from lockstep.sweeps.sweep_jobs import Job, SweepJobs
from lockstep.sweeps.table import LiveTable

POLL = 0.1  # seconds between two looks at the jobs
GRACE = 12.0  # seconds a job gets to end by itself, after its own deadline for saving, before it is killed


@dataclass
class Running:
    """A job under way."""

    job: Job
    handle: Handle
    saved_before: int | None  # the time of its last checkpoint when it began
    ended_for: JobState | None = None  # its state, if the sweep ends it
    kill_at: float = float("inf")  # time.monotonic

    def stop(self, ended_for: JobState, seconds: float) -> None:
        self.ended_for, self.kill_at = ended_for, time.monotonic() + seconds
        self.handle.stop()


class Runner:
    """One call of `run` handles one batch; `stopped` says why no more jobs are to be started."""

    def __init__(self, sweep_jobs: SweepJobs, executor: Executor) -> None:
        self.sweep_jobs, self.executor, self.settings, self.table = sweep_jobs, executor, executor.settings, LiveTable()
        self.stopped: str | None = None
        self._failures: Counter[str] = Counter()
        self._running: list[Running] = []
        self._note = f"From any terminal: {command_line('scripts/sweep.py', 'watch', sweep_jobs.directory)}"

    def run(self, jobs: Sequence[Job]) -> None:
        waiting = [*jobs]
        with STOP_SIGNALS.deferring() as received:
            try:
                while self._running or (waiting and not self.stopped):
                    self._obey(received)
                    while not (self.stopped or received) and (job := self.executor.choose(waiting)) is not None:
                        waiting.remove(job)
                        self._start(job, waiting)
                    for one in self._running[:]:
                        if (end := self._look_at(one)) is not None:
                            self._running.remove(one)
                            self._conclude(one, end, waiting)
                    self.table.show(self.sweep_jobs, self._note)
                    time.sleep(POLL)
            finally:
                if not self.executor.outlives:
                    self._kill_all()
                self.table.show(self.sweep_jobs, self._note)
                self.table.close()
        if self.was_interrupted:  # a terminal that closes says so more than once, and there is the table to write
            STOP_SIGNALS.leave()

    @property
    def was_interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.startswith("interrupted")

    def interrupt(self, number: int) -> str:
        """Note that a signal has ended the sweep; return the words for it."""
        self.stopped = f"interrupted by {signal.Signals(number).name}"
        return self.stopped

    def _obey(self, received: Sequence[int]) -> None:
        """The first request to stop ends the jobs, or leaves them to the queue; a second Ctrl-C kills them."""
        if received and not self.was_interrupted:
            why = self.interrupt(received[0])
            if self.executor.outlives:
                self._running.clear()
                return
            print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
            for one in self._running:
                one.stop(JobState(INTERRUPTED, why), one.job.start.stop_deadline + GRACE)
        if signal.SIGINT in received[1:]:  # a terminal that closes sends several SIGHUPs
            self._kill_all()

    def _kill_all(self) -> None:
        for one in self._running:
            one.handle.stop(kill=True)

    def _start(self, job: Job, waiting: list[Job]) -> None:
        """Start a job, or go on with one that is in the queue."""
        one = Running(job, Handle(), _checkpoint_time(job))
        try:
            if job.queue is None:
                job.begin(self.executor.place(job))
            one.handle = self.executor.start(job)
        except OSError as error:  # no process, or no file: its disk is full, say
            self._conclude(one, Exit(None, JobState(FAILED, f"could not be started ({error.strerror or error})")), waiting)
        else:
            self._running.append(one)

    def _look_at(self, one: Running) -> Exit | None:
        """Return how it has ended, if it has."""
        if (end := one.handle.poll()) is not None:
            return end
        timeout, now = self.settings.timeout, time.monotonic()
        if timeout is not None and one.ended_for is None and now - one.handle.began > timeout:
            one.stop(JobState(FAILED, f"no end within {timeout:g} s"), GRACE)
        if now > one.kill_at:
            one.kill_at = float("inf")
            one.handle.stop(kill=True)
        one.job.status, one.job.reason = RUNNING if one.handle.waits is None else WAITING, one.handle.waits
        return None

    def _conclude(self, one: Running, end: Exit, waiting: list[Job]) -> None:
        """Note the end. Try a job that has failed again, `retries` times; and a preempted one as long as it advances: one that is
        stopped before it can save would go round for ever."""
        one.job.end(end, one.ended_for)
        one.job.save_end()
        if one.job.status == FAILED:
            self._failures[one.job.key] += 1
            goes_on = self._failures[one.job.key] <= self.settings.retries
        else:
            has_advanced = _checkpoint_time(one.job) not in (None, one.saved_before)
            goes_on = one.job.status == INTERRUPTED and has_advanced and not (self.stopped or end.is_cancelled)
        if goes_on:
            waiting.append(one.job)


def _checkpoint_time(job: Job) -> int | None:
    """Return what differs from one last.ckpt to the next; by the clock of the file system, which need not be this machine's."""
    last = job.directory / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime_ns if last.is_file() else None
