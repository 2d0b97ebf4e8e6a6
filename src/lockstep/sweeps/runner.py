"""Runs jobs as process trees of their own on slots, several at once, and judges how each has ended."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.config.overrides import quote
from lockstep.config.plan import cores
from lockstep.errors import ExitCode
from lockstep.launchers.environment import PARENT_PIPE, RANK_VARIABLES, SWEEP_PIPE, SWEPT_KEYS
from lockstep.launchers.processes import PROCESSES, Process
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.launchers.supervisor import kill_group, pipe
from lockstep.runs.hparams import write_failed_session
from lockstep.runs.identity import is_resumable
from lockstep.sweeps.job_directory import FAILED, FINISHED, INTERRUPTED, RUNNING, archive, judge_record, record_of, status_of
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.live_table import LiveTable
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.pool import Pool
from lockstep.sweeps.settings import Settings

POLL = 0.1  # seconds between two looks at the jobs
GRACE = 12.0  # seconds a job gets to end by itself, after its own deadline for saving, before it is killed
LOG_TAIL = 20  # lines of a failed job's log that are recorded


@dataclass
class Running:
    """A job under way: its process, its slots, and when it began (time.monotonic)."""

    job: Job
    process: Process
    slots: tuple[str, ...]
    began: float
    ended_for: str | None = None  # why we are ending it
    kill_at: float = float("inf")


class Runner:
    """One call of `run` handles one batch; `stopped` says that no more jobs should be handed out."""

    def __init__(self, manifest: Manifest, pools: dict[str, Pool], settings: Settings, progress: LiveTable) -> None:
        self.manifest, self.pools, self.settings, self.progress = manifest, pools, settings, progress
        self.stopped: str | None = None
        self._tries: dict[str, int] = {}

    def run(self, jobs: Sequence[Job]) -> None:
        waiting, running = list(jobs), list[Running]()
        with STOP_SIGNALS.noted() as received, pipe() as (reader, _):
            try:
                while running or (waiting and not self.stopped):
                    if received and not self.was_interrupted:
                        self._stop(running, received[0])
                    if signal.SIGINT in received[1:]:  # a terminal that closes sends several SIGHUPs
                        _kill_all(running)
                    if not self.stopped:
                        self._start_what_fits(waiting, running, reader)
                    for one in [one for one in running if self._is_over(one)]:
                        running.remove(one)
                        self._conclude(one, waiting)
                    self.progress.show()
                    time.sleep(POLL)
            finally:
                _kill_all(running)
                self.progress.close()
        if self.was_interrupted:  # a terminal that closes says so more than once, and there is the table to write
            STOP_SIGNALS.listen()
            STOP_SIGNALS.leave()

    @property
    def was_interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.startswith("interrupted")

    def _stop(self, running: Sequence[Running], number: int) -> None:
        self.stopped = f"interrupted by {signal.Signals(number).name}"
        print("Stopping: ending the running jobs; Ctrl-C once more kills them.", file=sys.stderr, flush=True)
        for one in running:
            _ask_to_end(one, self.stopped, one.job.stop_deadline + GRACE)

    def _start_what_fits(self, waiting: list[Job], running: list[Running], reader: int) -> None:
        for name, pool in self.pools.items():
            while (job := pool.choose([job for job in waiting if job.pool == name])) is not None:
                waiting.remove(job)
                running.append(self._start(job, pool, reader))

    def _start(self, job: Job, pool: Pool, reader: int) -> Running:
        slots = pool.take(job.width)
        command = self._prepare(job)
        attempt = {
            "command": command,
            "started": time.time(),
            "ended": None,
            "code": None,
            "devices": list(slots),
            "git_commit": self.manifest.git_commit,
        }
        attempts = [*self.manifest.jobs[job.key]["attempts"], attempt]
        self.manifest.update(job.key, status=RUNNING, reason=None, log_tail=None, attempts=attempts)
        with (job.directory / "output.log").open("ab") as output:
            kept = _cores_of(pool, slots)
            environment = self._environment(job, slots)
            lifeline = (SWEEP_PIPE, reader)
            process = PROCESSES.start(command, environment, lifeline, output, output, cores_kept=kept, fresh=job.fresh)
        return Running(job, process, slots, time.monotonic())

    def _prepare(self, job: Job) -> list[str]:
        """Continues what was interrupted; what an attempt that failed has left is kept."""
        entry = self.manifest.jobs[job.key]
        job.directory.mkdir(parents=True, exist_ok=True)
        if entry["status"] == INTERRUPTED and is_resumable(job.directory):
            return [*job.command[:2], *job.overrides, f"resume={quote(str(job.directory))}"]
        archive(job.directory)
        return list(job.command)

    def _environment(self, job: Job, slots: tuple[str, ...]) -> dict[str, str]:
        drop = {*RANK_VARIABLES, PARENT_PIPE}
        environment = {key: value for key, value in os.environ.items() if key not in drop}
        environment[SWEPT_KEYS] = " ".join(job.swept)
        if job.pool == "gpu":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slots)
        mine = len(_cores_of(self.pools[job.pool], slots))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, mine // job.world_size)))
        return environment

    def _is_over(self, one: Running) -> bool:
        if one.process.poll() is not None:
            return True
        now = time.monotonic()
        if self.settings.timeout is not None and one.ended_for is None and now - one.began > self.settings.timeout:
            _ask_to_end(one, f"no end within {self.settings.timeout:g} s", GRACE)
        if now > one.kill_at:
            kill_group(one.process.pid)
        return False

    def _conclude(self, one: Running, waiting: list[Job]) -> None:
        kill_group(one.process.pid)
        self.pools[one.job.pool].give_back(one.slots)
        status, reason, metric = judge(one, self.stopped)
        entry = self.manifest.jobs[one.job.key]
        entry["attempts"][-1] |= {"ended": time.time(), "code": one.process.returncode, "reason": reason}
        tail = None if status == FINISHED else _tail(one.job.directory / "output.log")
        self.manifest.update(one.job.key, status=status, reason=reason, metric=metric, log_tail=tail)
        if status == INTERRUPTED and not self.stopped and _has_advanced(one):  # it was preempted, not the sweep
            waiting.append(one.job)
        tries = self._tries[one.job.key] = self._tries.get(one.job.key, 0) + 1
        if status == FAILED and tries <= self.settings.retries:
            waiting.append(one.job)
        elif status == FAILED:
            _show_in_tensorboard(one.job)
            if self.settings.on_failure == "stop" and not self.stopped:
                self.stopped = f"{one.job.directory.name} has failed and hydra.launcher.on_failure=stop"


def judge(one: Running, stopped: str | None) -> tuple[str, str | None, float | None]:
    """Status, reason and metric of a job that has ended. Finished means code 0 and a record with finite metrics."""
    code = one.process.returncode
    record = record_of(one.job.directory) if code == ExitCode.FINISHED else None
    if record is not None:
        return judge_record(one.job.directory, record)
    if one.ended_for is not None:
        return (INTERRUPTED if one.ended_for == stopped else FAILED), one.ended_for, None
    if code == ExitCode.FINISHED:
        return FAILED, "ended with code 0 and no record", None
    if code < 0:
        return FAILED, f"killed by {signal.Signals(-code).name}", None
    _, reason = status_of(one.job.directory)
    if code == ExitCode.PREEMPTED:
        return INTERRUPTED, reason, None
    last_lines = (_tail(one.job.directory / "output.log") or [])[-1:]
    reason = reason or ": ".join([f"ended with code {code}", *last_lines])
    return FAILED, " ".join(reason.split()), None


def _show_in_tensorboard(job: Job) -> None:
    """A job that has finished has written its hyperparameters itself; one that failed can't have."""
    if job.tensorboard is not None:
        with contextlib.suppress(ImportError, OSError):  # a logger that is not installed, a disk that is full
            write_failed_session(job.directory / job.tensorboard, job.hyperparameters)


def _has_advanced(one: Running) -> bool:
    """Has it saved a checkpoint since it began? One that is preempted before it can do so would go round for ever."""
    last = one.job.directory / "checkpoints" / "last.ckpt"
    return last.is_file() and time.time() - last.stat().st_mtime < time.monotonic() - one.began


def _ask_to_end(one: Running, why: str, seconds: float) -> None:
    one.ended_for, one.kill_at = why, time.monotonic() + seconds
    one.process.send_signal(signal.SIGINT)


def _kill_all(running: Sequence[Running]) -> None:
    """The jobs' own processes; their ranks see that these are gone, and follow."""
    for one in running:
        kill_group(one.process.pid)


def _cores_of(pool: Pool, slots: Sequence[str]) -> list[int]:
    """Jobs at the same time keep to cores of their own: each slot has an equal share. All cores where there are too few."""
    everything = sorted(cores())
    share = len(everything) // len(pool.slots)
    if not share:
        return everything
    places = [pool.slots.index(slot) for slot in slots]
    return [core for place in places for core in everything[place * share : (place + 1) * share]]


def _tail(path: Path) -> list[str] | None:
    return path.read_text(errors="replace").splitlines()[-LOG_TAIL:] if path.is_file() else None
