"""Jobs in SLURM's queue: those that ask for the same go out as one job array.

They go on without the process that has submitted them. The next one finds them by the name of their array, which says whose they
are, in squeue or, if they have left that, in sacct and in what they have left in their directories. SWEEP_DIR/slurm has a list of
jobs and a batch script for each array, written before it is submitted.
"""

import logging
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import replace_text, write_json
from lockstep.config.plan import Plan
from lockstep.console import say
from lockstep.errors import ConfigError, config_error
from lockstep.extras.slurm import commands
from lockstep.extras.slurm.commands import Refused, Unanswered
from lockstep.extras.slurm.queue import CODE, Queue, QueuedAttempt, RefusedAttempt, places
from lockstep.extras.slurm.settings import SBATCH_KEYS, SlurmSettings
from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.sweeps.executor import Attempt, Begin, Executor
from lockstep.sweeps.job_directory import OUTPUT, state_after
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.local import refuse_queued
from lockstep.sweeps.states import UNKNOWN, WAITING
from lockstep.sweeps.sweep_jobs import SweepJobs

log = logging.getLogger(__name__)
# What a person has set where sbatch refuses a flag that is neither a key of the launcher nor in its `sbatch`.
_KEYS = {"nodes": "trainer.num_nodes", "ntasks-per-node": "trainer.devices", "gres": "trainer.devices"}
_KEYS |= {"cpus-per-task": "hydra.launcher.cpus_per_device"}
_SCRIPT = """#!/bin/bash
# Task k of the array is the k-th of these jobs.
trap : TERM # srun gets it too, and its exit code is wanted
{setup}
case $SLURM_ARRAY_TASK_ID in
{cases}
esac
export {swept_keys}="$swept" OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"
rm -f "$directory/{code}"
srun --input=none --wait=60 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  --open-mode=append --output="${{directory//%/%%}}/{output}" "$@"
code=$?
echo $code > "$directory/{code}.partial" && mv "$directory/{code}.partial" "$directory/{code}"
exit $code
"""


class SlurmExecutor(Executor):
    """Submits all jobs at once; which of them run is SLURM's matter."""

    ends_with_sweep = False

    def __init__(self, sweep_dir: Path, settings: SlurmSettings) -> None:
        self.settings, self.queue = settings, Queue(sweep_dir, settings.poll, withdraws=True)
        self.detaches = settings.detach
        self._adopted: dict[str, QueuedAttempt] = {}

    def node_gpus(self, config: DictConfig) -> int:
        if OmegaConf.select(config, "trainer.accelerator") == "cpu":
            return 0
        return SlurmSettings.from_config(config.hydra.launcher).gpus()

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        return SlurmSettings.from_config(config.hydra.launcher).flags(plan)

    def check(self, jobs: Sequence[Job]) -> None:
        for flags in dict.fromkeys(job.resources for job in jobs):
            try:
                commands.check_flags(flags)
            except Refused as error:
                raise _refusal(flags, str(error)) from error
            except Unanswered as error:
                raise _no_answer(error) from error

    def reconcile(self, sweep_jobs: SweepJobs) -> None:
        if len(places(sweep_jobs)) < len(sweep_jobs.in_queue()):
            refuse_queued(sweep_jobs, "slurm")
        sweep_jobs.reconcile()
        try:
            self._adopted = reconcile(sweep_jobs, self.queue)
        except Unanswered as error:
            raise _no_answer(error) from error

    def adopt(self, job: Job) -> QueuedAttempt | None:
        return self._adopted.pop(job.key, None)

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Attempt]]:
        groups: dict[tuple[str, ...], list[Job]] = {}
        for job in waiting:
            groups.setdefault(job.resources, []).append(job)
        try:
            most = commands.largest_array() if len(waiting) > 1 else 1
        except Unanswered as error:  # the next look asks again
            log.warning(f"{error}; trying again")
            time.sleep(self.settings.poll)
            return []
        waiting.clear()
        arrays = [jobs[at : at + most] for jobs in groups.values() for at in range(0, len(jobs), most)]
        return [started for jobs in arrays for started in self._submit(jobs, begin)]

    def _submit(self, jobs: list[Job], begin: Begin) -> list[tuple[Job, Attempt]]:
        name = self.queue.next_name()
        script = self.queue.folder / f"{name}.sh"
        write_json(self.queue.folder / f"{name}.json", {"jobs": [job.key for job in jobs]})
        places = [f"{name}_{index}" for index in range(len(jobs))]
        commands = [begin(job, queue=place) for job, place in zip(jobs, places, strict=True)]
        replace_text(script, self._script(jobs, commands))
        flags = (f"--chdir={Path.cwd()}", f"--output={script.with_suffix('')}_%a.out", "--open-mode=append", *jobs[0].resources)
        try:
            self._put_into_queue(script, name, len(jobs), flags)
        except Refused as error:
            return [(job, RefusedAttempt(str(error))) for job in jobs]
        return [(job, QueuedAttempt(self.queue, place, job.directory)) for job, place in zip(jobs, places, strict=True)]

    def _script(self, jobs: list[Job], commands: list[list[str]]) -> str:
        cases = [
            f"{index}) directory={shlex.quote(str(job.directory))} swept={shlex.quote(' '.join(job.swept))}\n"
            f"  set -- {shlex.join(command)} ;;"
            for index, (job, command) in enumerate(zip(jobs, commands, strict=True))
        ]
        setup, threads = "\n".join(self.settings.setup), self.settings.cpus_per_device
        return _SCRIPT.format(
            setup=setup, cases="\n".join(cases), swept_keys=SWEPT_KEYS, threads=threads, code=CODE, output=OUTPUT
        )

    def _put_into_queue(self, script: Path, name: str, count: int, flags: Sequence[str]) -> None:
        """Tries until the controller has answered, or we are asked to stop. Raises Refused."""
        while not STOP_SIGNALS.received:
            try:
                commands.submit(script, name, count, flags, self.settings.jobs)
                self.queue.ask()
                return
            except Unanswered as error:
                log.warning(f"{error}; trying again")
                time.sleep(self.settings.poll)


def _no_answer(error: Unanswered) -> ConfigError:
    return config_error("hydra/launcher", "slurm", f"{error}; accepted once it answers")


def _refusal(flags: tuple[str, ...], words: str) -> ConfigError:
    """Names the key of the flag without which sbatch would take the others."""
    flag = next((flag for flag in flags if _are_taken([other for other in flags if other != flag])), None)
    if flag is None:
        return config_error("hydra.launcher", " ".join(flags), f"sbatch refuses that ({words}); accepted is what it takes")
    name, _, value = flag.removeprefix("--").partition("=")
    key = _KEYS.get(name, f"hydra.launcher.{name}" if name in SBATCH_KEYS else "hydra.launcher.sbatch")
    return config_error(key, value.rpartition(":")[2], f"sbatch refuses {flag} ({words}); accepted is what it takes")


def _are_taken(flags: Sequence[str]) -> bool:
    try:
        commands.check_flags(flags)
    except (Refused, Unanswered):
        return False
    return True


def reconcile(sweep_jobs: SweepJobs, queue: Queue | None = None) -> dict[str, QueuedAttempt]:
    """Brings the jobs that were in the queue up to date; returns those that still are in it. Raises Unanswered."""
    queue = queue or Queue(sweep_jobs.directory)
    commands.wait_for_sbatch(queue.folder)
    queue.ask()
    for place, key in queue.keys().items():
        if key in sweep_jobs.jobs and places(sweep_jobs).get(key) != place:  # its job.json was lost
            sweep_jobs.jobs[key]["attempts"].append({"queue": place, "started": time.time(), "ended": None, "code": None})
    queued: dict[str, QueuedAttempt] = {}
    for key, place in places(sweep_jobs).items():
        job = sweep_jobs.jobs[key]
        attempt = QueuedAttempt(queue, place, sweep_jobs.directory / job["directory"])
        if (end := attempt.reap()) is None:
            queued[key] = attempt
            state = attempt.state()
            job |= {"status": state.status, "reason": state.reason}
        else:
            state = state_after(sweep_jobs.directory / job["directory"], end)
            job |= state._asdict()
            if state.status == WAITING:  # it never came to the queue
                job["attempts"].pop()
            else:
                job["attempts"][-1] |= {"ended": time.time(), "code": end.code, "reason": state.reason}
    return queued


def show_state(sweep_jobs: SweepJobs) -> None:
    """`reconcile` for who only looks: where SLURM does not answer, nobody knows their states."""
    if not places(sweep_jobs):
        return
    try:
        reconcile(sweep_jobs)
    except Unanswered as error:
        say(str(error))
        for key in places(sweep_jobs):
            sweep_jobs.jobs[key] |= {"status": UNKNOWN, "reason": "SLURM does not answer"}


def cancel(sweep_jobs: SweepJobs) -> int:
    """Takes what SLURM has of a sweep out of its queue, running jobs too; returns how many."""
    if sweep_jobs.in_queue() and not places(sweep_jobs):  # another queue has them
        return 0
    try:
        queued = reconcile(sweep_jobs)
        commands.cancel([task.id for attempt in queued.values() if (task := attempt.task) is not None])
    except Unanswered as error:
        raise config_error("SWEEP_DIR", sweep_jobs.directory, f"{error}; a sweep on this machine is ended by Ctrl-C") from error
    return len(queued)
