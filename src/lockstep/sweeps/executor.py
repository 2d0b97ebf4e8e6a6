"""Who runs a sweep's jobs: what the runner asks of this machine, or of a cluster's queue."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hydra.utils import get_object
from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.states import Exit, JobState
from lockstep.sweeps.sweep_jobs import SweepJobs

Begin = Callable[..., list[str]]  # of a job, and of where: notes that an attempt begins, before it does; returns the command


class Attempt(Protocol):
    """A job under way."""

    @property
    def seconds(self) -> float:
        """How long it has run; 0 while it waits."""
        return 0.0

    def state(self) -> JobState:
        return JobState()

    def requeued(self) -> str | None:
        """Why its last start came to nothing, said once, where a queue will start it again."""

    def reap(self) -> Exit | None:
        """None while it is under way. When it is over, once, how it has ended; nothing of it is left then."""

    def ask_to_end(self) -> None:
        """Lets it save and end by itself."""

    def kill(self) -> None:
        """Ends it, or takes it out of the queue."""


class Executor(Protocol):
    """ends_with_sweep: do its jobs end when the sweep's process does?

    detaches: does the sweep's process end when it has handed all jobs out?
    """

    ends_with_sweep: bool
    detaches: bool = False

    def node_gpus(self, config: DictConfig) -> int | None:
        """The GPUs of each node that a job of this composed config is planned for; None for this machine. Raises ConfigError."""

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        """What a job takes, for the executor itself and for a person. Raises ConfigError where that is not to be had."""
        ...

    def check(self, jobs: Sequence[Job]) -> None:
        """Raises ConfigError where one asks for what is never to be had, before anything is written."""

    def reconcile(self, sweep_jobs: SweepJobs) -> None:
        """Brings jobs that were under way when an earlier sweep process ended up to date; notes those that still are."""

    def adopt(self, job: Job) -> Attempt | None:
        """Returns the attempt of a job that an earlier sweep process has started and that is still under way."""

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Any]]:
        """Starts what can be started now, each with its Attempt, and takes it from the list."""
        ...


def queues() -> list[Any]:
    """Return the modules of jobs that go on without the sweep's process.

    Each has two functions: show_state(sweep_jobs) brings the jobs in its queue up to date for who looks, and writes nothing;
    cancel(sweep_jobs) takes them out of the queue, returns how many they were, and raises ConfigError where that can't be done.
    """
    return [get_object("lockstep.extras.slurm.launcher")]
