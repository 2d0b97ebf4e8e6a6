"""What SLURM has of one sweep, and the state of each of its jobs there."""

import contextlib
import hashlib
import logging
import os
import re
import time
from pathlib import Path

from lockstep.atomic_files import read_json
from lockstep.extras.slurm import commands
from lockstep.extras.slurm.commands import Task, Unanswered
from lockstep.sweeps.executor import Attempt
from lockstep.sweeps.job_directory import read_state, read_status
from lockstep.sweeps.states import FAILED, INTERRUPTED, RUNNING, WAITING, Exit, JobState
from lockstep.sweeps.sweep_jobs import SweepJobs

log = logging.getLogger(__name__)
PREFIX = "lockstep-"  # begins the name of each array, and its jobs' places in their job.json
CODE = "exit_code"  # in a job's directory: what srun has ended with
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# Reasons, of JOB REASON CODES in squeue(1), for which a job waits for ever, unless somebody changes it or the cluster.
_NEVER = "BadConstraints|DependencyNeverSatisfied|Invalid(Account|QOS)|(Account|QOS)NotAllowed|PartitionTimeLimit"
_NEVER += r"|MaxMemPerLimit|(Assoc|QOS)Max\w+Per(Job|Node)\w*"
_GOES_ON = ("PREEMPTED", "TIMEOUT")  # from its last checkpoint


def places(sweep_jobs: SweepJobs) -> dict[str, str]:
    """Returns the place of each job, by its key, that SLURM has as far as is known."""
    return {key: place for key, place in sweep_jobs.in_queue().items() if place.startswith(PREFIX)}


class Queue:
    """The jobs of one sweep that SLURM has, by array and index: what squeue has said last. Who runs the sweep withdraws those
    that can't begin."""

    def __init__(self, sweep_dir: Path, poll: float = 0.0, *, withdraws: bool = False) -> None:
        self.withdraws = withdraws
        self.folder = sweep_dir / "slurm"
        self.prefix = f"{PREFIX}{hashlib.sha256(os.path.realpath(sweep_dir).encode()).hexdigest()[:8]}-"
        self.tasks: dict[str, Task] = {}
        self._poll, self._due = poll, 0.0

    def ask(self) -> None:
        """Asks squeue again. Raises Unanswered."""
        self.tasks = commands.tasks(self.prefix)
        self._due = time.monotonic() + self._poll

    def ask_if_due(self) -> None:
        """States are taken not to have changed if it does not answer."""
        if time.monotonic() > self._due:
            try:
                self.ask()
            except Unanswered as error:
                log.warning(str(error))
                self._due = time.monotonic() + self._poll

    def keys(self) -> dict[str, str]:
        """The job of each task that is not over."""
        names = {place.rpartition("_")[0] for place in self.tasks}
        known = {name: (read_json(self.folder / f"{name}.json") or {}).get("jobs", []) for name in names}
        places = {f"{name}_{index}": key for name, jobs in known.items() for index, key in enumerate(jobs)}
        return {place: places[place] for place, task in self.tasks.items() if not task.is_over and place in places}

    def next_name(self) -> str:
        """That no array of this sweep has had."""
        self.folder.mkdir(exist_ok=True)
        return f"{self.prefix}{len([*self.folder.glob('*.json')])}"


class QueuedAttempt(Attempt):
    """A job that SLURM has, in its place in the queue."""

    def __init__(self, queue: Queue, place: str, directory: Path) -> None:
        self._queue, self._place, self._directory = queue, place, directory
        self._nodes = ""  # on which it has run until now

    @property
    def task(self) -> Task | None:
        return self._queue.tasks.get(self._place)

    @property
    def seconds(self) -> float:
        return self.task.seconds if self.task else 0.0

    def state(self) -> JobState:
        task = self.task
        if task is not None and task.state not in _WAITING:
            return JobState(RUNNING)
        reason = f"in SLURM's queue: {task.reason or task.state}" if task else None
        if task and re.search("held", task.reason, re.IGNORECASE):
            reason = f"{reason}; scontrol release {task.id} lets it begin"
        return JobState(WAITING, reason)

    def requeued(self) -> str | None:
        """In the words of the run itself, or in SLURM's about its nodes."""
        nodes, self._nodes = self._nodes, self.task.nodes if self.task and self.state().status == RUNNING else ""
        if self._nodes or not nodes:
            return None
        status, reason = read_status(self._directory)
        if status == "preempted" and reason is not None:
            return reason
        return f"put back into the queue by SLURM: {commands.node_summary(nodes) or 'it does not say why'}"

    def reap(self) -> Exit | None:
        self._queue.ask_if_due()
        task = self.task
        if task is not None and task.state in _WAITING and re.fullmatch(_NEVER, task.reason):
            if self._queue.withdraws:
                self.kill()
            return Exit(None, JobState(FAILED, f"SLURM can never start it: {task.reason}"))
        if task is not None and not task.is_over:
            return None
        if task is None:
            task = commands.accounted(self._place.rpartition("_")[0]).get(self._place)
        code = 0 if task is not None and task.state == "COMPLETED" else self._code()
        if task is None and code is None:  # squeue has forgotten it, and nobody keeps accounts
            return Exit(None, read_state(self._directory, died="has left SLURM's queue without a word"))
        return Exit(code, self._ended_by_slurm(task, code), task is not None and task.state == "CANCELLED")

    def _ended_by_slurm(self, task: Task | None, code: int | None) -> JobState | None:
        """What SLURM says of its end, where that is not the job's own doing."""
        if task is None or (task.state in ("COMPLETED", "FAILED") and code is not None):
            return None
        words = f"{task.state} by SLURM"
        if task.state == "FAILED" and task.reason:
            words = f"{words} ({task.reason})"
        if on := commands.node_summary(task.nodes):
            words = f"{words}: {on}"
        return JobState(INTERRUPTED if task.state in (*_GOES_ON, "CANCELLED") else FAILED, words)

    def _code(self) -> int | None:
        """Beyond 128 are signals, as a shell counts them."""
        try:
            code = int((self._directory / CODE).read_text())
        except (OSError, ValueError):
            return None
        return code if code <= 128 else 128 - code

    def ask_to_end(self) -> None:
        self.kill("INT")

    def kill(self, signal: str | None = None) -> None:
        if self.task is not None:
            with contextlib.suppress(Unanswered):
                commands.cancel([self.task.id], signal)


class RefusedAttempt(Attempt):
    """A job that sbatch did not take."""

    def __init__(self, words: str) -> None:
        self._words = words

    def reap(self) -> Exit:
        return Exit(None, JobState(FAILED, f"refused by SLURM: {self._words}"))
