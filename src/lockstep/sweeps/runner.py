"""Runs a batch of jobs to their ends, whichever executor starts them, and notes the state of each."""

import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.console import command_line
from lockstep.errors import ExitCode
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.locks import is_held
from lockstep.runs.record import git_commit
from lockstep.runs.saved import read_run_id, write_config
from lockstep.runs.validation import without_hydra
from lockstep.sweeps.executor import Attempt, Executor
from lockstep.sweeps.job_directory import archive, read_status, state_after
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.settings import Settings
from lockstep.sweeps.states import FAILED, INTERRUPTED, RUNNING, WAITING, Exit, JobState
from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import LiveTable
from lockstep.sweeps.view import SweepView

POLL = 0.1  # seconds between two looks at the jobs
GRACE = 12.0  # seconds a job gets to end by itself, after its own deadline for saving, before it is killed
DETACHED = "all jobs are in the queue"


@dataclass
class Running:
    """A job under way."""

    job: Job
    attempt: Attempt
    ended_for: JobState | None = None  # the state that it is to have when the runner has ended it
    kill_at: float = float("inf")  # time.monotonic
    is_withdrawn: bool = False  # before it has begun

    def ask_to_end(self, ended_for: JobState, seconds: float) -> None:
        self.ended_for, self.kill_at = ended_for, time.monotonic() + seconds
        self.attempt.ask_to_end()


class Runner:
    """One call of `run` handles one batch; `stopped` says that no more jobs should be handed out."""

    def __init__(self, sweep_jobs: SweepJobs, executor: Executor, settings: Settings) -> None:
        self.sweep_jobs, self.executor, self.settings, self.table = sweep_jobs, executor, settings, LiveTable()
        self.stopped: str | None = None
        self._failures: dict[str, int] = {}
        self._running: list[Running] = []
        self._note = f"From any terminal: {command_line('scripts/sweep.py', 'watch', sweep_jobs.directory)}"

    def run(self, jobs: Sequence[Job]) -> None:
        adopted = {job.key: attempt for job in jobs if (attempt := self.executor.adopt(job)) is not None}
        self._running = [Running(job, adopted[job.key]) for job in jobs if job.key in adopted]
        waiting = [job for job in jobs if job.key not in adopted]
        detaches = self.executor.detaches and bool(waiting) and not adopted  # who finds jobs in the queue waits for them
        with STOP_SIGNALS.deferring() as received:
            try:
                while self._running or (waiting and not self.stopped):
                    self._obey(received)
                    if not self.stopped:
                        self._running += [Running(*started) for started in self.executor.start(waiting, self.begin)]
                    for one in self._running[:]:
                        if (end := self._look_at(one)) is not None:
                            self._running.remove(one)
                            self._conclude(one, end, waiting)
                    if detaches and not waiting and not self.stopped:
                        self.stopped = DETACHED
                        self._running.clear()
                    if self.stopped:
                        self._withdraw()
                    self.table.show(SweepView(self.sweep_jobs), self._note)
                    time.sleep(POLL)
            finally:
                if self.executor.ends_with_sweep:
                    self._kill_all()
                self.table.show(SweepView(self.sweep_jobs), self._note)
                self.table.close()
        if self.was_interrupted:  # a terminal that closes says so more than once, and there is the table to write
            STOP_SIGNALS.leave()

    @property
    def was_interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.startswith("interrupted")

    def interrupt(self, number: int) -> str:
        """Notes that a signal has ended the sweep; in these words."""
        self.stopped = f"interrupted by {signal.Signals(number).name}"
        return self.stopped

    def _obey(self, received: Sequence[int]) -> None:
        """The first request to stop ends the jobs, or leaves them to the queue; a second Ctrl-C kills them."""
        if received and not self.was_interrupted:
            why = self.interrupt(received[0])
            if not self.executor.ends_with_sweep:
                self._running.clear()
                return
            print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
            for one in self._running:
                one.ask_to_end(JobState(INTERRUPTED, why), one.job.stop_deadline + GRACE)
        if signal.SIGINT in received[1:]:  # a terminal that closes sends several SIGHUPs
            self._kill_all()

    def _kill_all(self) -> None:
        for one in self._running:
            one.attempt.kill()

    def _withdraw(self) -> None:
        """No more jobs are handed out: those that were and have not begun are taken back."""
        for one in self._running:
            if self.sweep_jobs.jobs[one.job.key]["status"] == WAITING and not one.is_withdrawn:
                one.is_withdrawn = True
                one.attempt.kill()

    def begin(self, job: Job, **where: Any) -> list[str]:
        """Notes an attempt, on what; returns its command. Raises OSError where the directory can't be prepared."""
        try:
            self._prepare(job)
        finally:
            attempt = {"command": [*job.command], "started": time.time(), "ended": None, "code": None, **where}
            attempt |= {"saved_before": _checkpoint_time(job), "git_commit": git_commit()}
            attempts = [*self.sweep_jobs.jobs[job.key]["attempts"], attempt]
            self.sweep_jobs.update(job.key, status=RUNNING, reason=None, attempts=attempts)
        return list(job.command)

    def _prepare(self, job: Job) -> None:
        """Make the directory that of a run which has not begun. One that was interrupted, or has saved when it was stopped, for
        its timeout say, goes on; what other attempts that failed have left is kept."""
        job.directory.mkdir(parents=True, exist_ok=True)
        was_stopped = self.sweep_jobs.jobs[job.key]["status"] == INTERRUPTED or read_status(job.directory)[0] == "preempted"
        if (was_stopped and read_run_id(job.directory)) or is_held(job.directory):  # a command that has resumed it, say
            return
        archive(job.directory)
        if job.composed is not None:
            composed = without_hydra(job.composed)
            write_config(job.directory, composed, job.composed.hydra, run_id := uuid.uuid4().hex, job.global_batch_size)
            job.composed.run_id = run_id

    def _look_at(self, one: Running) -> Exit | None:
        """How it has ended, if it has; a change of its state is noted."""
        if (end := one.attempt.reap()) is not None:
            return end
        timeout, seconds = self.settings.timeout, one.attempt.seconds
        if timeout is not None and one.ended_for is None and seconds > timeout:
            one.ask_to_end(JobState(FAILED, f"no end within {timeout:g} s"), GRACE)
        if time.monotonic() > one.kill_at:
            one.kill_at = float("inf")
            one.attempt.kill()
        state, entry = one.attempt.state(), self.sweep_jobs.jobs[one.job.key]
        if (why := one.attempt.requeued()) is not None:
            entry["attempts"][-1] |= {"ended": time.time(), "reason": why}
            entry["attempts"].append(entry["attempts"][-1] | {"started": time.time(), "ended": None, "reason": None})
        if (entry["status"], entry["reason"]) != (state.status, state.reason):
            if state.status == RUNNING:
                entry["attempts"][-1]["started"] = time.time() - seconds
            self.sweep_jobs.update(one.job.key, status=state.status, reason=state.reason)
        return None

    def _conclude(self, one: Running, end: Exit, waiting: list[Job]) -> None:
        job, entry = one.job, self.sweep_jobs.jobs[one.job.key]
        if one.is_withdrawn:
            self.sweep_jobs.update(job.key, status=WAITING, reason=None, attempts=entry["attempts"][:-1])
            return
        state, last = state_after(job.directory, end, one.ended_for), entry["attempts"][-1]
        last |= {"ended": time.time(), "code": end.code, "reason": state.reason}
        self.sweep_jobs.update(job.key, **state._asdict())
        # a job that is preempted before it can save would go round for ever
        has_advanced = _checkpoint_time(job) not in (None, last.get("saved_before"))
        was_preempted = state.status == INTERRUPTED and not (self.stopped or end.is_cancelled or end.code == ExitCode.REFUSED)
        failures = self._failures[job.key] = self._failures.get(job.key, 0) + (state.status == FAILED)
        if (was_preempted and (has_advanced or end.is_lost)) or (state.status == FAILED and failures <= self.settings.retries):
            waiting.append(job)
        elif state.status == FAILED and self.settings.on_failure == "stop" and not self.stopped:
            self.stopped = f"{job.directory.name} has failed and hydra.launcher.on_failure=stop"


def _checkpoint_time(job: Job) -> int | None:
    """Differs from one last.ckpt to the next; by the clock of the file system, which need not be this machine's."""
    last = job.directory / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime_ns if last.is_file() else None
