"""Jobs that a cluster of Ray's has without the sweep's process: detached actors, each of which has a name of its own.

The name says whose and which job it is, and what has become of it stands in SWEEP_DIR/ray/NAME.json. SWEEP_DIR/ray/cluster.json
says which cluster has them: no other one is asked, and nobody is connected to an address that a directory says.
"""

import contextlib
import hashlib
import importlib.util
import os
import time
import uuid
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json, write_json
from lockstep.console import say
from lockstep.errors import ConfigError, config_error
from lockstep.extras.ray_cluster.attempt import job_environment
from lockstep.extras.ray_cluster.cluster import RayCluster
from lockstep.extras.ray_cluster.settings import RaySettings, Share
from lockstep.runs.locks import is_held
from lockstep.sweeps.executor import Attempt
from lockstep.sweeps.job_directory import OUTPUT, read_state, state_after
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.runner import GRACE
from lockstep.sweeps.states import INTERRUPTED, RUNNING, UNKNOWN, WAITING, Exit, JobState

PLACE = "ray-"  # begins the name of each, in the manifest's words its place in the queue
_PATIENCE = 10.0  # seconds until a worker has heard a request
_POLL = 1.0  # seconds between two questions to the cluster
_SHAPE = {"started": int | float, "ended?": int | float, "code?": int, "was_asked?": (True, False)}


class LeftJobs:
    """Those of one sweep."""

    def __init__(self, sweep_dir: Path, cluster: RayCluster) -> None:
        self.cluster, self.folder = cluster, sweep_dir / "ray"
        self.prefix = f"{PLACE}{hashlib.sha256(os.path.realpath(sweep_dir).encode()).hexdigest()[:8]}-"
        self._names: set[str] = set()
        self._due = 0.0

    def leave(self, job: Job, share: Share, begin: Any) -> "LeftAttempt":
        place = f"{self.prefix}{job.key}-{uuid.uuid4().hex[:6]}"
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / "cluster.json", {"address": self.cluster.gcs_address})
        command = begin(job, queue=place), job_environment(job, self.cluster.settings), str(job.directory / OUTPUT)
        self.cluster.leave(share, place, str(self.file(place)), job.stop_deadline + GRACE, *command)
        self._due = 0.0
        return LeftAttempt(self, place, job.directory)

    def file(self, place: str) -> Path:
        return self.folder / f"{place}.json"

    def names(self) -> set[str]:
        """Returns the names of all that are not over, other sweeps' too."""
        if time.monotonic() > self._due:
            self._names, self._due = self.cluster.names(), time.monotonic() + _POLL
        return self._names

    def check(self) -> None:
        """Raises ConfigError where another cluster has them than the one that is asked."""
        known = read_json(self.folder / "cluster.json", {"address": str})
        if known is not None and known["address"] != (given := self.cluster.gcs_address):
            words = f"jobs of this sweep are on the cluster at {known['address']}; accepted is that one, by RAY_ADDRESS where the"
            words += f" command has no address. If it is no more, remove {self.folder / 'cluster.json'}"
            raise config_error("hydra.launcher.address", given, words)


class LeftAttempt(Attempt):
    def __init__(self, jobs: LeftJobs, place: str, directory: Path) -> None:
        self._jobs, self._place, self._directory = jobs, place, directory

    @property
    def said(self) -> dict[str, Any]:
        return read_json(self._jobs.file(self._place), _SHAPE) or {}

    @property
    def seconds(self) -> float:
        return time.time() - self.said.get("started", time.time())

    def state(self) -> JobState:
        return JobState(RUNNING) if self.said else JobState(WAITING, "waits until Ray has a place for it")

    def reap(self) -> Exit | None:
        is_there = self._place in self._jobs.names()
        if "code" in (said := self.said):
            was_asked = said.get("was_asked", False)
            return Exit(said["code"], JobState(INTERRUPTED, "asked to end") if was_asked else None, was_asked)
        if is_there or is_held(self._directory):  # its processes follow the worker that has died
            return None
        lost = JobState(INTERRUPTED, "taken back, or lost by Ray, before it began")
        return Exit(None, read_state(self._directory, died="Ray has lost its worker") if said else lost)

    def ask_to_end(self) -> None:
        ray = self._jobs.cluster.ray  # this process may end at once
        self._tell(lambda actor: ray.wait([actor.ask_to_end.remote()], timeout=_PATIENCE))

    def kill(self) -> None:
        self._tell(self._jobs.cluster.ray.kill)

    def cancel(self) -> None:
        """Lets one that runs save and end, and takes back one that waits."""
        (self.ask_to_end if self.said else self.kill)()

    def _tell(self, what: Any) -> None:
        with contextlib.suppress(ValueError, self._jobs.cluster.ray.exceptions.RayError):  # it has ended
            what(self._jobs.cluster.find(self._place))


def places(manifest: Manifest) -> dict[str, str]:
    """Returns the place of each job, by its key, that a cluster of Ray's has as far as the manifest knows."""
    return {key: place for key, place in manifest.in_queue().items() if place.startswith(PLACE)}


def reconcile(manifest: Manifest, jobs: LeftJobs) -> dict[str, LeftAttempt]:
    """Brings the jobs that were left to a cluster up to date; returns those that it still has. Raises ConfigError."""
    jobs.check()
    own = {place for place in jobs.names() if place.startswith(jobs.prefix)}
    for place in own - {*places(manifest).values()}:  # the manifest was lost
        if (job := manifest.jobs.get(place.removeprefix(jobs.prefix).rpartition("-")[0])) is not None:
            job["attempts"].append({"queue": place, "started": time.time(), "ended": None, "code": None})
    left: dict[str, LeftAttempt] = {}
    for key, place in places(manifest).items():
        job = manifest.jobs[key]
        attempt = LeftAttempt(jobs, place, directory := manifest.directory / job["directory"])
        if (end := attempt.reap()) is None:
            left[key] = attempt
            job |= attempt.state()._asdict()
        else:
            job |= (state := state_after(directory, end))._asdict()
            times = {"ended": time.time()} | {name: attempt.said[name] for name in ("started", "ended") if name in attempt.said}
            job["attempts"][-1] |= times | {"code": end.code, "reason": state.reason}
    return left


def _ask(manifest: Manifest) -> dict[str, LeftAttempt]:
    """Asks the cluster that this machine is in."""
    if importlib.util.find_spec("ray") is None:
        raise config_error(
            "SWEEP_DIR", manifest.directory, "a cluster of Ray's has its jobs, and the library `ray` is not installed"
        )
    return reconcile(manifest, LeftJobs(manifest.directory, RayCluster(RaySettings(address="auto"))))


def show_state(manifest: Manifest) -> None:
    """`reconcile` for who only looks: where the cluster is not the one that this machine is in, nobody knows their states."""
    if not places(manifest):
        return
    try:
        _ask(manifest)
    except ConfigError as error:
        say(str(error))
        for key in places(manifest):
            manifest.jobs[key] |= {"status": UNKNOWN, "reason": "Ray does not answer"}


def cancel(manifest: Manifest) -> int:
    """Ends what a cluster of Ray's has of a sweep, running jobs too; returns how many."""
    left = _ask(manifest) if places(manifest) else {}
    for attempt in left.values():
        attempt.cancel()
    return len(left)
