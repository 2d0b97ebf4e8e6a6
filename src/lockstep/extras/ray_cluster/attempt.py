"""One job that Ray has been asked to run."""

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockstep.errors import ExitCode
from lockstep.extras.ray_cluster.cluster import RayCluster
from lockstep.extras.ray_cluster.settings import RaySettings, Share
from lockstep.launchers.environment import (
    JOB_MARK,
    PARENT_PID,
    RANK_VARIABLES,
    SWEEP_PIPE,
    SWEPT_KEYS,
    without_rank_variables,
)
from lockstep.runs.locks import is_held
from lockstep.sweeps.executor import Attempt
from lockstep.sweeps.job_directory import OUTPUT, read_status
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.states import FAILED, INTERRUPTED, RUNNING, WAITING, Exit, JobState

_LOSSES = 3  # times a job is tried again whose worker has died
_TOGETHER = 60.0  # seconds that a node's part of a job gets once another has ended
_FOLLOW = 30.0  # seconds in which processes are gone whose worker has died
_OF_A_PLACE = {*RANK_VARIABLES, PARENT_PID, SWEEP_PIPE, JOB_MARK, "CUDA_VISIBLE_DEVICES"}
_TORCHRUN = (sys.executable, "-m", "lockstep.extras.ray_cluster.agent")


class RayAttempt(Attempt):
    """An actor of Ray's on each of the job's nodes: each says when it has a place, and then runs its part."""

    def __init__(self, cluster: RayCluster, job: Job, share: Share, command: list[str], losses: Counter[str]) -> None:
        """losses: of each job by its key, how often what ran it has died."""
        self._cluster, self._ray, self._job, self._share, self._command = cluster, cluster.ray, job, share, command
        self._losses = losses
        self._group, self._actors = cluster.place(share)
        self._places = [actor.place.remote() for actor in self._actors]
        self._runs: list[Any] = []
        self._began: float | None = None
        self._ends_by = float("inf")
        self._is_killed = False
        self._lost: tuple[str, float] | None = None  # why, and when its processes are gone at the latest

    @property
    def seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def state(self) -> JobState:
        return JobState(RUNNING) if self._runs else JobState(WAITING, f"waits for {self._share.words()}")

    def reap(self) -> Exit | None:
        if self._lost is not None:
            return self._end_of_lost(*self._lost)
        try:
            code = self._look()
        except self._ray.exceptions.RayTaskError as error:  # it could not be started there
            self.release()
            return Exit(None, JobState(FAILED, str(error).strip().splitlines()[-1]))
        except self._ray.exceptions.RayError as error:
            self.release()
            self._lost = (_reason(error), time.monotonic() + _FOLLOW)
            return None
        if code is not None:
            self.release()
        return None if code is None else Exit(code)

    def _look(self) -> int | None:
        """Returns the job's code when it has ended. Raises RayError where an actor has died."""
        if not self._runs:
            if len(self._ended(self._places)) == len(self._places):
                self._run(self._ray.get(self._places))
            return None
        ended = self._ended(self._runs)
        codes = self._ray.get(ended)
        if len(codes) == len(self._runs) or time.monotonic() > self._ends_by:
            return self._code(codes)
        if codes:
            self._ends_by = min(self._ends_by, time.monotonic() + _TOGETHER)
        return None

    def _ended(self, references: list[Any]) -> list[Any]:
        return self._ray.wait(references, num_returns=len(references), timeout=0)[0]

    def _run(self, addresses: Sequence[tuple[str, int]]) -> None:
        given = _environment(self._job, self._cluster.settings)
        commands = [self._command] if self._share.nodes == 1 else self._commands(*addresses[0])
        output = str(self._job.directory / OUTPUT)
        self._runs = [actor.run.remote(command, given, output) for actor, command in zip(self._actors, commands, strict=True)]
        self._began = time.monotonic()

    def _commands(self, host: str, port: int) -> list[list[str]]:
        """Each node's processes are started by torchrun, and meet at the first node."""
        share = self._share
        meeting = (f"--nnodes={share.nodes}", f"--nproc-per-node={share.devices}", f"--rdzv-id={self._job.key}")
        meeting += (f"--master-addr={host}", f"--master-port={port}")
        return [[*_TORCHRUN, *meeting, f"--node-rank={node}", *self._command[1:]] for node in range(share.nodes)]

    def _code(self, codes: Sequence[int]) -> int:
        """torchrun says 1 whatever code its processes have ended with."""
        if len(codes) == len(self._runs) and not any(codes):
            return ExitCode.FINISHED
        if self._share.nodes > 1 and read_status(self._job.directory)[0] == "preempted":
            return ExitCode.PREEMPTED
        return next(filter(None, codes), ExitCode.FAILED)

    def _end_of_lost(self, reason: str, gone_by: float) -> Exit | None:
        """A next attempt must not meet the processes of this one, which follow the worker that has died."""
        if is_held(self._job.directory) and time.monotonic() < gone_by:
            return None
        if self._is_killed:
            return Exit(None, JobState(INTERRUPTED, "killed by the sweep"))
        self._losses[self._job.key] += 1
        if (count := self._losses[self._job.key]) > _LOSSES:
            return Exit(None, JobState(FAILED, f"{reason}, {count} times" if count > 1 else reason))
        return Exit(None, JobState(INTERRUPTED, reason), is_lost=True)

    def ask_to_end(self) -> None:
        for actor in self._actors if self._runs else ():
            actor.ask_to_end.remote()

    def kill(self) -> None:
        self._is_killed = True
        self.release()

    def release(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._cluster.release(self._group, self._actors)


def _environment(job: Job, settings: RaySettings) -> dict[str, str]:
    """Returns the variables that a job gets on any node: this process's, as sbatch gives them, but for those of a place."""
    threads = os.environ.get("OMP_NUM_THREADS", str(settings.threads()))
    own = {name for name in os.environ if name.startswith("RAY_") or name in _OF_A_PLACE}
    kept = {name: value for name, value in without_rank_variables(os.environ).items() if name not in own}
    return kept | {SWEPT_KEYS: " ".join(job.swept), "OMP_NUM_THREADS": threads}


def _reason(error: Exception) -> str:
    """In the last of Ray's own lines that is not one of a list."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return f"Ray has lost its worker: {lines[-1].strip()[:300]}" if lines else "Ray has lost its worker"
