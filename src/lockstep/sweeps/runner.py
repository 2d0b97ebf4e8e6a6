"""Has a batch of jobs run to their ends, whoever runs them, and judges how each has ended."""

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.console import command_line
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.hparams import write_session
from lockstep.runs.identity import is_resumable
from lockstep.sweeps.executor import Attempt, Executor
from lockstep.sweeps.job_directory import archive, judge, log_tail
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.settings import Settings
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, End, Verdict
from lockstep.sweeps.table import LiveTable
from lockstep.sweeps.view import SweepView

POLL = 0.1  # seconds between two looks at the jobs
GRACE = 12.0  # seconds a job gets to end by itself, after its own deadline for saving, before it is killed


@dataclass
class Running:
    """A job under way."""

    job: Job
    attempt: Attempt
    ended_for: Verdict | None = None  # that it is to have when we have ended it
    kill_at: float = float("inf")  # time.monotonic
    is_withdrawn: bool = False  # before it has begun


class Runner:
    """One call of `run` handles one batch; `stopped` says that no more jobs should be handed out."""

    def __init__(self, manifest: Manifest, executor: Executor, settings: Settings) -> None:
        self.manifest, self.executor, self.settings, self.table = manifest, executor, settings, LiveTable()
        self._note = f"From any terminal: {command_line('scripts/sweep.py', 'watch', manifest.directory)}"
        self.stopped: str | None = None
        self._tries: dict[str, int] = {}

    def run(self, jobs: Sequence[Job]) -> None:
        waiting, running = list[Job](), list[Running]()
        for job in jobs:
            if (attempt := self.executor.adopt(job)) is None:
                waiting.append(job)
            else:
                running.append(Running(job, attempt))
        with STOP_SIGNALS.noted() as received, self.executor.at_work():
            try:
                while running or (waiting and not self.stopped):
                    if received and not self.was_interrupted:
                        self._stop(running, received[0])
                    if signal.SIGINT in received[1:]:  # a terminal that closes sends several SIGHUPs
                        _kill_all(running)
                    if not self.stopped:
                        running += [Running(*started) for started in self.executor.start(waiting, self.begin)]
                    for one in running[:]:
                        if (end := self._look_at(one)) is not None:
                            running.remove(one)
                            self._conclude(one, end, waiting)
                    if self.stopped:
                        self._withdraw(running)
                    self._show()
                    time.sleep(POLL)
            finally:
                if self.executor.ends_with_sweep:
                    _kill_all(running)
                self._show()
                self.table.close()
        if self.was_interrupted:  # a terminal that closes says so more than once, and there is the table to write
            STOP_SIGNALS.leave()

    def _show(self) -> None:
        self.table.show(SweepView(self.manifest), self._note)

    @property
    def was_interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.startswith("interrupted")

    def interrupt(self, number: int) -> str:
        """Notes that a signal has ended the sweep; in these words."""
        self.stopped = f"interrupted by {signal.Signals(number).name}"
        return self.stopped

    def _stop(self, running: list[Running], number: int) -> None:
        why = self.interrupt(number)
        if not self.executor.ends_with_sweep:
            running.clear()
            return
        print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
        for one in running:
            _ask_to_end(one, Verdict(INTERRUPTED, why), one.job.stop_deadline + GRACE)

    def _withdraw(self, running: Sequence[Running]) -> None:
        """No more jobs are handed out: those that were and have not begun are taken back."""
        for one in running:
            if self.manifest.jobs[one.job.key]["status"] == WAITING and not one.is_withdrawn:
                one.is_withdrawn = True
                one.attempt.kill()

    def begin(self, job: Job, **where: Any) -> list[str]:
        """Notes an attempt, on what; returns its command."""
        command = self._prepare(job)
        attempt = {"command": command, "started": time.time(), "ended": None, "code": None, **where}
        attempt["saved_before"] = _saved(job)
        attempts = [*self.manifest.jobs[job.key]["attempts"], attempt | {"git_commit": self.manifest.git_commit}]
        self.manifest.update(job.key, status=RUNNING, reason=None, log_tail=None, attempts=attempts)
        return command

    def _prepare(self, job: Job) -> list[str]:
        """Continues what was interrupted; what an attempt that failed has left is kept."""
        entry = self.manifest.jobs[job.key]
        job.directory.mkdir(parents=True, exist_ok=True)
        if entry["status"] == INTERRUPTED and is_resumable(job.directory):
            return [*job.command, *job.resumption]
        archive(job.directory)
        return list(job.command)

    def _look_at(self, one: Running) -> End | None:
        """How it has ended, if it has; what is new about it is noted."""
        if (end := one.attempt.reap()) is not None:
            return end
        now, ran, standing = time.monotonic(), one.attempt.seconds, one.attempt.standing()
        if self.settings.timeout is not None and one.ended_for is None and ran > self.settings.timeout:
            _ask_to_end(one, Verdict(FAILED, f"no end within {self.settings.timeout:g} s"), GRACE)
        if now > one.kill_at:
            one.kill_at = float("inf")
            one.attempt.kill()
        entry = self.manifest.jobs[one.job.key]
        if standing.lost is not None:
            entry["attempts"][-1] |= {"ended": time.time(), "reason": standing.lost}
            entry["attempts"].append(entry["attempts"][-1] | {"started": time.time(), "ended": None, "reason": None})
        if (entry["status"], entry["reason"]) != (standing.status, standing.reason):
            if standing.status == RUNNING:
                entry["attempts"][-1]["started"] = time.time() - ran
            self.manifest.update(one.job.key, status=standing.status, reason=standing.reason)
        return None

    def _conclude(self, one: Running, end: End, waiting: list[Job]) -> None:
        entry = self.manifest.jobs[one.job.key]
        if one.is_withdrawn:
            self.manifest.update(one.job.key, status=WAITING, reason=None, attempts=entry["attempts"][:-1])
            return
        verdict = judge(one.job.directory, end, one.ended_for)
        before = entry["attempts"][-1].get("saved_before")
        entry["attempts"][-1] |= {"ended": time.time(), "code": end.code, "reason": verdict.reason}
        tail = None if verdict.status == FINISHED else log_tail(one.job.directory)
        self.manifest.update(one.job.key, **verdict._asdict(), log_tail=tail)
        has_advanced = _saved(one.job) not in (None, before)  # one that is preempted before it can save would go round for ever
        if verdict.status == INTERRUPTED and not self.stopped and not end.is_cancelled and has_advanced:
            waiting.append(one.job)  # it was preempted, not the sweep
        tries = self._tries[one.job.key] = self._tries.get(one.job.key, 0) + 1
        if verdict.status == FAILED and tries <= self.settings.retries:
            waiting.append(one.job)
        elif verdict.status == FAILED:
            _show_in_tensorboard(one.job)
            if self.settings.on_failure == "stop" and not self.stopped:
                self.stopped = f"{one.job.directory.name} has failed and hydra.launcher.on_failure=stop"


def _show_in_tensorboard(job: Job) -> None:
    """A job that has finished has written its hyperparameters itself; one that failed can't have."""
    if job.tensorboard is not None:
        with contextlib.suppress(ImportError, OSError):  # a logger that is not installed, a disk that is full
            write_session(job.directory / job.tensorboard, job.hyperparameters, is_success=False)


def _saved(job: Job) -> int | None:
    """Tells one last.ckpt from the next, by the clock of the file system, which need not be ours."""
    last = job.directory / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime_ns if last.is_file() else None


def _ask_to_end(one: Running, ended_for: Verdict, seconds: float) -> None:
    one.ended_for, one.kill_at = ended_for, time.monotonic() + seconds
    one.attempt.ask_to_end()


def _kill_all(running: Sequence[Running]) -> None:
    for one in running:
        one.attempt.kill()
