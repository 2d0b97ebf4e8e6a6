"""Who runs a sweep's jobs: what the runner asks of this machine, or of a cluster's queue."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from lockstep.config.plan import Elsewhere, Plan
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.states import End, Standing

Begin = Callable[..., list[str]]  # of a job, and of where: notes that an attempt begins, before it does; returns the command


class Attempt(Protocol):
    """A job under way."""

    @property
    def seconds(self) -> float:
        """For which it has run; 0 while it waits."""
        ...

    def standing(self) -> Standing:
        return Standing()

    def reap(self) -> End | None:
        """None while it is under way. When it is over, once, how it has ended; nothing of it is left then."""

    def ask_to_end(self) -> None: ...

    def kill(self) -> None: ...


class Executor(Protocol):
    """ends_with_sweep: do its jobs end when the sweep's process does."""

    ends_with_sweep: bool

    def elsewhere(self, config: DictConfig) -> Elsewhere | None:
        """The nodes that a job of this composed config is planned for; None for this machine. Raises ConfigError."""

    def resources(self, config: DictConfig, plan: Plan) -> tuple[str, ...]:
        """What a job takes, for the executor itself and for a person. Raises ConfigError where that is not to be had."""
        ...

    def check(self, jobs: Sequence[Job]) -> None:
        """Raises ConfigError where one asks for what is never to be had, before anything is written."""

    def reconcile(self, manifest: Manifest) -> None:
        """Brings jobs that were under way when an earlier sweep process ended up to date; notes those that still are, for
        `adopt`."""

    def at_work(self) -> AbstractContextManager[Any]:
        """In which jobs are started, and their ends waited for."""
        return contextlib.nullcontext()

    def adopt(self, job: Job) -> Attempt | None:
        """One that an earlier sweep process has started, and that is still under way."""

    def start(self, waiting: list[Job], begin: Begin) -> list[tuple[Job, Any]]:
        """Starts what can be started now, each with its Attempt, and takes it from the list."""
        ...


class LauncherWithQueue(Protocol):
    """A Hydra launcher whose jobs outlive the sweep's process: what it says of them to who only looks at the sweep."""

    @staticmethod
    def reconcile(manifest: Manifest) -> None:
        """Brings the jobs that are in its queue, or were, up to date in `manifest`, which is not written."""

    @staticmethod
    def cancel(manifest: Manifest) -> int:
        """Takes the sweep's jobs out of its queue; returns how many. Raises ConfigError where that can't be done."""
        ...


def launchers_with_queue() -> list[type[LauncherWithQueue]]:
    """Those of the installed launchers that have these methods."""
    launchers: list[Any] = Plugins.instance().discover(Launcher)
    return [launcher for launcher in launchers if hasattr(launcher, "reconcile") and hasattr(launcher, "cancel")]
