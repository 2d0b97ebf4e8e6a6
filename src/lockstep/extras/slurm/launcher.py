"""Jobs in SLURM's queue, where each has a name that says which job of which sweep it is, and which attempt.

They go on without the process that has submitted them. The next one finds them by their names: in squeue or, if they have left
that, in sacct and in what they have left in their directories.
"""

import contextlib
import hashlib
import logging
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import replace_text
from lockstep.config.plan import Plan
from lockstep.console import say
from lockstep.errors import ConfigError, config_error
from lockstep.extras.slurm import commands
from lockstep.extras.slurm.commands import Refused, Task, Unanswered
from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.sweeps.jobs import FAILED, INTERRUPTED, OUTPUT, RUNNING, WAITING, Exit, JobState, read_state
from lockstep.sweeps.local import Executor, Handle, Settings
from lockstep.sweeps.sweep_jobs import Job, SweepJobs

log = logging.getLogger(__name__)
PREFIX = "lockstep-"
CODE = "exit_code"  # in a job's directory: what srun has ended with
SCRIPT = "job.sh"
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# Reasons, of JOB REASON CODES in squeue(1), for which a job waits for ever, unless somebody changes it or the cluster.
_NEVER = "BadConstraints|DependencyNeverSatisfied|Invalid(Account|QOS)|(Account|QOS)NotAllowed|PartitionTimeLimit"
_NEVER += r"|MaxMemPerLimit|(Assoc|QOS)Max\w+Per(Job|Node)\w*"
_GOES_ON = ("PREEMPTED", "TIMEOUT", "CANCELLED")  # from its last checkpoint
# What a person has set where sbatch refuses a flag that is neither a key of the launcher nor in its `sbatch`.
_SBATCH_KEYS = ("partition", "account", "time", "mem")  # keys that are its flags too
_KEYS = {"nodes": "trainer.num_nodes", "ntasks-per-node": "trainer.devices", "gres": "trainer.devices"}
_KEYS |= {"cpus-per-task": "hydra.launcher.cpus_per_device"}
_SCRIPT = """#!/bin/bash
trap : TERM # srun gets it too, and its exit code is wanted
{setup}
directory={directory}
export {swept_keys}={swept} OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"
rm -f "$directory/{code}"
srun --input=none --wait=60 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  --open-mode=append --output="${{directory//%/%%}}/{output}" {command}
code=$?
echo $code > "$directory/{code}.partial" && mv "$directory/{code}.partial" "$directory/{code}"
exit $code
"""


@dataclass(kw_only=True)
class SlurmSettings(Settings):
    """Resources a job asks SLURM for; they may depend on the job's own config, by ${...}."""

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

    def flags(self, plan: Plan) -> tuple[str, ...]:
        """Return options of sbatch. One node is one task, whose process starts the others itself, as on any machine; of several
        nodes each process is a task."""
        tasks = plan.devices if plan.num_nodes > 1 else 1
        cpus = self.cpus_per_device * plan.devices // tasks
        flags = [f"--nodes={plan.num_nodes}", f"--ntasks-per-node={tasks}", f"--cpus-per-task={cpus}"]
        if plan.accelerator == "gpu":
            flags.append(f"--gres={self.gres}:{plan.devices}")
        flags += [f"--{name}={value}" for name in _SBATCH_KEYS if (value := getattr(self, name)) is not None]
        return (*flags, "--requeue", f"--signal=USR1@{self.warning}", *self.sbatch)


class Queue:
    """Latest answer of squeue about the jobs of one sweep, by their names."""

    def __init__(self, sweep_dir: Path, poll: float = 10.0) -> None:
        self.prefix = f"{PREFIX}{hashlib.sha256(os.path.realpath(sweep_dir).encode()).hexdigest()[:8]}-"
        self.tasks: dict[str, Task] = {}
        self.poll, self._due = poll, 0.0

    def ask(self) -> None:
        """Ask squeue again. Raise Unanswered."""
        self.tasks = commands.tasks(self.prefix)
        self._due = time.monotonic() + self.poll

    def ask_if_due(self) -> None:
        """Take states not to have changed if it does not answer."""
        if time.monotonic() > self._due:
            try:
                self.ask()
            except Unanswered as error:
                log.warning(str(error))
                self._due = time.monotonic() + self.poll


class QueuedJob(Handle):
    """A job that SLURM has."""

    def __init__(self, queue: Queue, name: str, directory: Path, *, withdraws: bool = True) -> None:
        """withdraws: take it out of the queue if it can never begin."""
        self._queue, self._name, self._directory, self._withdraws = queue, name, directory, withdraws

    @property
    def task(self) -> Task | None:
        return self._queue.tasks.get(self._name)

    def poll(self) -> Exit | None:
        self._queue.ask_if_due()
        if (task := self.task) is not None and not task.is_over:
            if task.state in _WAITING and re.fullmatch(_NEVER, task.reason):
                if self._withdraws:
                    self.stop(kill=True)
                return Exit(None, JobState(FAILED, f"SLURM can never start it: {task.reason}"))
            is_waiting = task.state in _WAITING
            self.waits = f"in SLURM's queue: {task.reason or task.state}" if is_waiting else None
            self.began = float("inf") if is_waiting else time.monotonic() - task.seconds
            return None
        code = 0 if task is not None and task.state == "COMPLETED" else self._code()
        if task is None and code is None:  # squeue has forgotten it
            return Exit(None, read_state(self._directory, died="has left SLURM's queue without a word"))
        if task is None or task.state == "COMPLETED" or (task.state == "FAILED" and code is not None):
            return Exit(code)
        words = f"{task.state} by SLURM{f' on {task.nodes}' if task.nodes else ''}"
        state = JobState(INTERRUPTED if task.state in _GOES_ON else FAILED, words)
        return Exit(code, state, is_cancelled=task.state == "CANCELLED")

    def _code(self) -> int | None:
        """Return what srun has ended with. Beyond 128 are signals, as a shell counts them."""
        try:
            code = int((self._directory / CODE).read_text())
        except (OSError, ValueError):
            return None
        return code if code <= 128 else 128 - code

    def stop(self, *, kill: bool = False) -> None:
        if self.task is not None:
            with contextlib.suppress(Unanswered):
                commands.cancel([self.task.id], *([] if kill else ["--signal=INT"]))


class SlurmExecutor(Executor):
    """Submits jobs; which of them run is SLURM's matter."""

    name, outlives = "slurm", True

    def __init__(self, config: DictConfig) -> None:
        self.settings = SlurmSettings.of(config)
        self.queue = Queue(Path(str(config.hydra.sweep.dir)).absolute(), self.settings.poll)

    def node_gpus(self, config: DictConfig) -> int:
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        if self.settings.gpus_per_node is None:  # this machine need not be like the nodes
            words = "use the number of GPUs of a node, 0 where it has none; or trainer.accelerator=cpu"
            raise config_error("hydra.launcher.gpus_per_node", "null", words)
        return self.settings.gpus_per_node

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        return SlurmSettings.of(config).flags(plan)

    def check(self, jobs: Sequence[Job]) -> None:
        for flags in dict.fromkeys(job.start.resources for job in jobs):
            try:
                commands.check_flags(flags)
            except Refused as error:
                raise _refusal(flags, str(error)) from error
            except Unanswered as error:
                raise _no_answer(error) from error

    def open(self, sweep_jobs: SweepJobs) -> None:
        try:
            for job in _find_ended(sweep_jobs, self.queue):
                job.save_end()
        except Unanswered as error:
            raise _no_answer(error) from error

    def place(self, job: Job) -> str:
        return f"{self.queue.prefix}{job.key}-{job.attempt + 1}"

    def start(self, job: Job) -> Handle:
        name = job.queue or ""
        handle = QueuedJob(self.queue, name, job.directory)
        if handle.task is None:
            (job.directory / CODE).unlink(missing_ok=True)
            script = job.directory / SCRIPT
            replace_text(script, self._script(job))
            own = (f"--chdir={Path.cwd()}", f"--output={job.directory}/slurm.out", "--open-mode=append")
            try:
                self._submit(script, name, (*own, *job.start.resources))
            except Refused as error:
                raise OSError(None, f"refused by SLURM: {error}") from error
        return handle

    def _script(self, job: Job) -> str:
        return _SCRIPT.format(
            setup="\n".join(self.settings.setup),
            directory=shlex.quote(str(job.directory)),
            swept_keys=SWEPT_KEYS,
            swept=shlex.quote(" ".join(job.start.swept)),
            threads=self.settings.cpus_per_device,
            code=CODE,
            output=OUTPUT,
            command=shlex.join(job.start.command),
        )

    def _submit(self, script: Path, name: str, flags: Sequence[str]) -> None:
        """Try until the controller has answered, or this process is asked to stop. Raise Refused."""
        while name not in self.queue.tasks and not STOP_SIGNALS.received:
            try:
                self.queue.tasks[name] = commands.submit(script, name, flags)
            except Unanswered as error:
                log.warning(f"{error}; trying again")
                time.sleep(self.settings.poll)
                self.queue.ask_if_due()  # it may have been heard after all


def _no_answer(error: Unanswered) -> ConfigError:
    return config_error("hydra/launcher", "slurm", f"{error}; accepted once it answers")


def _refusal(flags: tuple[str, ...], words: str) -> ConfigError:
    """Name the key of the flag without which sbatch would take the others."""
    for flag in flags:
        with contextlib.suppress(Refused, Unanswered):
            commands.check_flags([other for other in flags if other != flag])
            name, _, value = flag.removeprefix("--").partition("=")
            key = _KEYS.get(name, f"hydra.launcher.{name}" if name in _SBATCH_KEYS else "hydra.launcher.sbatch")
            return config_error(key, value.rpartition(":")[2], f"sbatch refuses {flag} ({words}); use what it takes")
    return config_error("hydra.launcher", " ".join(flags), f"sbatch refuses that ({words}); use what it takes")


def _find_ended(sweep_jobs: SweepJobs, queue: Queue) -> list[Job]:
    """Ask how the jobs in the queue stand; return those that have left it. Raise Unanswered."""
    queue.ask()
    ended = []
    for job in sweep_jobs.in_queue():
        handle = QueuedJob(queue, job.queue or "", job.directory, withdraws=False)
        if (end := handle.poll()) is None:
            job.status, job.reason = RUNNING if handle.waits is None else WAITING, handle.waits
        else:
            job.end(end)
            job.attempt -= job.status == WAITING  # SLURM has never heard of it
            ended.append(job)
    return ended


def show_state(sweep_jobs: SweepJobs) -> None:
    """Ask how jobs stand, for who only looks: where SLURM does not answer, they are shown as their directories say."""
    try:
        _find_ended(sweep_jobs, Queue(sweep_jobs.directory))
    except Unanswered as error:
        say(f"{error}; the states are those of the last look")


def cancel(sweep_jobs: SweepJobs) -> int:
    """Take what SLURM has of a sweep out of its queue, running jobs too; return how many. Raise ConfigError."""
    queue = Queue(sweep_jobs.directory)
    try:
        queue.ask()
        ids = [task.id for task in queue.tasks.values() if not task.is_over]
        commands.cancel(ids)
    except Unanswered as error:
        raise config_error("SWEEP_DIR", sweep_jobs.directory, f"{error}; a sweep on this machine is ended by Ctrl-C") from error
    return len(ids)
