"""Jobs in SLURM's queue, where each has a name that says which job of which sweep it is, and which attempt.

They go on without the process that has submitted them. The next one finds them by their names in squeue or, if they have left
that, by what they have left in their directories.

Not by submitit: it keeps the numbers of jobs in the memory of the process that has submitted them, unpickles a function where a
sweep's job is a command line, and asks sacct alone, which says nothing on a cluster without accounting.
"""

import contextlib
import hashlib
import logging
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import replace_text
from lockstep.config.plan import Plan
from lockstep.console import say
from lockstep.errors import config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.slurm.cluster import SlurmError, answer
from lockstep.sweeps.jobs import FAILED, OUTPUT, PREEMPTED, QUEUED, RUNNING, Job, JobState, SweepJobs, read_state
from lockstep.sweeps.local import Executor, Handle, create_executor

log = logging.getLogger(__name__)
CODE = "exit_code"  # in a job's directory: what srun has ended with
SCRIPT = "job.sh"
# The states, of JOB STATE CODES in squeue(1), of a job that is over.
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
_GOES_ON = ("PREEMPTED", "TIMEOUT", "CANCELLED")  # from its last checkpoint
_SCRIPT = """#!/bin/bash
trap : TERM # srun gets it too, and its exit code is wanted
{setup}
directory={directory}
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"
rm -f "$directory/{code}"
srun --input=none --wait=60 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  --open-mode=append --output="${{directory//%/%%}}/{output}" {command}
code=$?
echo $code > "$directory/{code}.partial" && mv "$directory/{code}.partial" "$directory/{code}"
exit $code
"""


class Task(NamedTuple):
    """A job in the queue. reason: why it waits. nodes: n[1-2], say."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""


class Queue:
    """Latest answer of squeue about the jobs of one sweep, by their names; also those that have ended some minutes ago."""

    def __init__(self, sweep_dir: Path, poll: float = 10.0) -> None:
        self.prefix = f"lockstep-{hashlib.sha256(os.path.realpath(sweep_dir).encode()).hexdigest()[:8]}-"
        self.tasks: dict[str, Task] = {}
        self.poll, self._due = poll, 0.0

    def ask(self) -> None:
        """Ask squeue again. Raise SlurmError."""
        self._due = time.monotonic() + self.poll
        listed = answer("squeue", "--me", "--states=all", "--noheader", "--format=%A|%j|%T|%r|%N").splitlines()
        rows = [line.split("|") for line in listed]
        self.tasks = {name: Task(number, *said) for number, name, *said in rows if name.startswith(self.prefix)}

    def ask_if_due(self) -> None:
        """Take states not to have changed if it does not answer."""
        if time.monotonic() > self._due:
            try:
                self.ask()
            except SlurmError as error:
                log.warning(str(error))


class QueuedJob(Handle):
    """A job that SLURM has."""

    def __init__(self, queue: Queue, name: str, directory: Path) -> None:
        self._queue, self._name, self._directory = queue, name, directory

    @property
    def task(self) -> Task | None:
        return self._queue.tasks.get(self._name)

    def poll(self) -> int | JobState | None:
        self._queue.ask_if_due()
        task, code = self.task, self._code()
        if task is None:  # squeue has forgotten it
            return read_state(self._directory) if code is None else code
        if task.state not in ENDED:
            is_waiting = task.state not in ("RUNNING", "COMPLETING")
            self.waits = f"in SLURM's queue: {task.state if task.reason in ('', 'None') else task.reason}" if is_waiting else None
            self.began = float("inf") if is_waiting else min(self.began, time.monotonic())
            return None
        if task.state == "COMPLETED":
            return 0
        if task.state == "FAILED" and code is not None:
            return code
        self.is_cancelled = task.state == "CANCELLED"
        words = f"{task.state} by SLURM{f' on {task.nodes}' if task.nodes else ''}"
        return JobState(PREEMPTED if task.state in _GOES_ON else FAILED, words)

    def _code(self) -> int | None:
        """Return what srun has ended with. Beyond 128 are signals, as a shell counts them."""
        try:
            code = int((self._directory / CODE).read_text())
        except (OSError, ValueError):
            return None
        return code if code <= 128 else 128 - code

    def stop(self, *, kill: bool = False) -> None:
        if self.task is not None:
            with contextlib.suppress(SlurmError):
                answer("scancel", "--quiet", *([] if kill else ["--signal=INT"]), self.task.id)


@dataclass(kw_only=True)
class SlurmExecutor(Executor):
    """Submits jobs; which of them run is SLURM's matter. What a job asks for may depend on its own config, by ${...}."""

    outlives = True
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    mem: str | None = None
    gpus_per_node: int | None = None
    gres: str = "gpu"
    cpus_per_device: int = 4
    warning: int = 120
    poll: float = 10
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)

    def node_gpus(self, config: DictConfig) -> int:
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        if self.gpus_per_node is None:  # this machine need not be like the nodes
            words = "use the number of GPUs of a node, 0 where it has none; or trainer.accelerator=cpu"
            raise config_error("hydra.launcher.gpus_per_node", "null", words)
        return self.gpus_per_node

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        return create_executor(config).flags(plan)

    def flags(self, plan: Plan) -> tuple[str, ...]:
        """Return options of sbatch. One node is one task, whose process starts the others itself, as on any machine; of several
        nodes each process is a task."""
        task_count = plan.devices if plan.num_nodes > 1 else 1
        cpus = self.cpus_per_device * plan.devices // task_count
        flags = [f"--nodes={plan.num_nodes}", f"--ntasks-per-node={task_count}", f"--cpus-per-task={cpus}"]
        if plan.accelerator == "gpu":
            flags.append(f"--gres={self.gres}:{plan.devices}")
        given = {name: getattr(self, name) for name in ("partition", "account", "time", "mem")}
        flags += [f"--{name}={value}" for name, value in given.items() if value is not None]
        return (*flags, "--requeue", f"--signal=USR1@{self.warning}", *self.sbatch)

    def open(self, sweep_jobs: SweepJobs) -> None:
        self.queue = Queue(sweep_jobs.directory, self.poll)
        try:
            for job in _find_ended(sweep_jobs, self.queue):
                job.save_end()
        except SlurmError as error:
            raise config_error("hydra/launcher", "slurm", f"{error}; try again once it answers") from error

    def start(self, job: Job) -> Handle:
        if job.queue is None:
            job.queue = f"{self.queue.prefix}{job.key}-{job.attempt}"
            job.save()
        handle = QueuedJob(self.queue, job.queue, job.directory)
        if handle.task is None:
            (job.directory / CODE).unlink(missing_ok=True)
            replace_text(job.directory / SCRIPT, self._script(job))
            self._submit(job, job.queue)
        return handle

    def _script(self, job: Job) -> str:
        return _SCRIPT.format(
            setup="\n".join(self.setup),
            directory=shlex.quote(str(job.directory)),
            threads=self.cpus_per_device,
            code=CODE,
            output=OUTPUT,
            command=shlex.join(job.launch.command),
        )

    def _submit(self, job: Job, name: str) -> None:
        """Submit a job once: where sbatch fails, squeue says whether the job was heard after all. Try again as long as neither
        answers and this process is not asked to stop. Raise OSError with sbatch's words if it refuses the job."""
        flags = (f"--job-name={name}", f"--chdir={Path.cwd()}", f"--output={job.directory}/slurm.out", "--open-mode=append")
        while name not in self.queue.tasks and not STOP_SIGNALS.received:
            try:
                said = answer("sbatch", "--parsable", *flags, *job.launch.resources, str(job.directory / SCRIPT))
                self.queue.tasks[name] = Task(said.strip().partition(";")[0], "PENDING")
            except SlurmError as refusal:
                try:
                    self.queue.ask()
                except SlurmError as error:
                    log.warning(f"{error}; trying again")
                    time.sleep(self.poll)
                else:
                    if name not in self.queue.tasks:
                        raise OSError(None, str(refusal)) from refusal


def _find_ended(sweep_jobs: SweepJobs, queue: Queue) -> list[Job]:
    """Ask how the jobs in the queue stand; return those that have left it. Raise SlurmError."""
    queue.ask()
    ended = []
    for job in sweep_jobs.in_queue():
        handle = QueuedJob(queue, job.queue or "", job.directory)
        if (end := handle.poll()) is None:
            job.status, job.reason = RUNNING if handle.waits is None else QUEUED, handle.waits
        else:
            job.end(end)
            job.attempt -= job.status == QUEUED  # SLURM has never heard of it
            ended.append(job)
    return ended


def show_state(sweep_jobs: SweepJobs) -> None:
    """Ask how jobs stand, for who only looks: where SLURM does not answer, they are shown as their directories say."""
    try:
        _find_ended(sweep_jobs, Queue(sweep_jobs.directory))
    except SlurmError as error:
        say(f"{error}; the states are those of the last look")


def cancel(sweep_jobs: SweepJobs) -> int:
    """Take what SLURM has of a sweep out of its queue, running jobs too; return how many. Raise ConfigError."""
    queue = Queue(sweep_jobs.directory)
    try:
        queue.ask()
        if ids := [task.id for task in queue.tasks.values() if task.state not in ENDED]:
            answer("scancel", "--quiet", *ids)
    except SlurmError as error:
        raise config_error("SWEEP_DIR", sweep_jobs.directory, f"{error}; a sweep on this machine is ended by Ctrl-C") from error
    return len(ids)
