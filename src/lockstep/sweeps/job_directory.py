"""What a job's directory says of the job, whichever of its files are damaged; and what failed attempts leave in it."""

import itertools
from pathlib import Path
from typing import Any, get_args

from lockstep.atomic_files import read_json, write_json
from lockstep.errors import ExitCode
from lockstep.launchers.outcome import killed_by
from lockstep.runs.locks import is_held
from lockstep.runs.record import Status
from lockstep.sweeps.states import FAILED, FINISHED, INTERRUPTED, STATES, WAITING, Exit, JobState

METADATA = "job.json"  # which job this is, and how it stands
OUTPUT = "output.log"  # what a job's processes have said
ATTEMPTS = "attempts"
RECORDED = ("world_size", "global_batch_size", "lr", "samples_per_second", "train_time", "wall_time")
DIED = "the sweep process died"
_LONGEST = 2**14  # bytes of a reason, and of the end of a log

# The shapes of these files; see lockstep.atomic_files.is_like.
NUMBER = int | float | None
_RECORD = {"metrics": {str: NUMBER}, "optimized_metric": str, "ended_by?": str, "versions?": dict}
_RECORD |= {f"{name}?": NUMBER for name in RECORDED}
_PROGRESS = {"metrics?": {str: NUMBER}, "epoch?": NUMBER, "epochs?": NUMBER, "step?": NUMBER, "share?": NUMBER}
_PROGRESS |= {"seconds_per_epoch?": NUMBER, "samples_per_second?": NUMBER, "seconds_left?": NUMBER}
_METADATA = {"key": str, "number": int, "overrides": [str], "devices": int, "config": dict, "directory": str, "asked": int}
_METADATA |= {"optimized_metric": str, "optimized_mode": str, "repetition": str}
_METADATA |= {"status": STATES, "reason": str | None, "metric": NUMBER}
_METADATA |= {"attempts": [{"started": int | float, "ended": NUMBER, "queue?": str}]}


def read_record(directory: Path) -> dict[str, Any] | None:
    """metrics.json, which a run writes last."""
    path = directory / "metrics.json"
    return read_json(path, _RECORD, lambda content: content["optimized_metric"] in content["metrics"])


def read_progress(directory: Path) -> dict[str, Any]:
    """progress.json, of how far training is; empty where there is none."""
    return read_json(directory / "progress.json", _PROGRESS) or {}


def read_status(directory: Path) -> tuple[str | None, str | None]:
    """The status and the reason that status.json says, each None where it does not."""
    shape = {"status": get_args(Status), "reason?": str | None}
    content = read_json(directory / "status.json", shape) or {}
    reason = content.get("reason")
    return content.get("status"), reason and reason[:_LONGEST]


def read_state(directory: Path, died: str = DIED) -> JobState:
    """The state of a job that no process runs, by what it has left; `died` is the reason where that says nothing. The record is
    written last: where it is there, a lost status changes nothing."""
    status, reason = read_status(directory)
    record = read_record(directory)
    if record is not None and status in ("finished", None):
        return state_from_record(directory, record)
    if status == "failed":
        return JobState(FAILED, reason)
    return JobState(WAITING) if status is None else JobState(INTERRUPTED, reason or died)


def state_after(directory: Path, end: Exit, ended_for: JobState | None = None) -> JobState:
    """The state of a job whose attempt has ended; `ended_for` is that of one that the runner has ended. Finished means a record
    with finite metrics, and code 0 or a status that says so: what ends a process after that has cost nothing."""
    code, (status, reason) = end.code, read_status(directory)
    if (code == ExitCode.FINISHED or status == "finished") and (record := read_record(directory)) is not None:
        return state_from_record(directory, record)
    if (known := ended_for or end.state) is not None:
        return known
    if code == ExitCode.FINISHED:
        return JobState(FAILED, "ended with code 0 and no record")
    if code is not None and code < 0:
        return JobState(FAILED, killed_by(code))
    if code == ExitCode.PREEMPTED:
        return JobState(INTERRUPTED, reason)
    if code == ExitCode.REFUSED and is_held(directory):
        return JobState(INTERRUPTED, "another command has resumed it, and is under way")
    said = read_log_tail(directory)[-1:]
    if code == ExitCode.REFUSED and not said:  # which it says why
        said = [f"{directory / OUTPUT} is empty and its disk may be full"]
    reason = (reason if status == "failed" else None) or ": ".join([f"ended with code {code}", *said])  # else of an earlier start
    return JobState(FAILED, " ".join(reason.split()))


def state_from_record(directory: Path, record: dict[str, Any]) -> JobState:
    """The state of a job that has written its record: metrics that are not finite, in the record or in its last epoch, are a
    failure."""
    latest = read_progress(directory).get("metrics", {})
    if infinite := sorted({name for metrics in (latest, record["metrics"]) for name, value in metrics.items() if value is None}):
        return JobState(FAILED, f"{', '.join(infinite)} not finite")
    return JobState(FINISHED, record.get("ended_by"), record["metrics"][record["optimized_metric"]])


def read_log_tail(directory: Path) -> list[str]:
    """The last lines of a failed job's log, as far as they are in its last _LONGEST bytes, which are recorded."""
    path = directory / OUTPUT
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST))
        return file.read(_LONGEST).decode(errors="replace").splitlines()[-20:]


def archive(directory: Path) -> None:
    """Moves what an attempt has left to attempts/NUMBER. Event files get
    a name that TensorBoard passes over: it would show the attempt as another run."""
    left = [path for path in directory.iterdir() if path.name not in (ATTEMPTS, METADATA)]
    if not left:
        return
    numbers = (directory / ATTEMPTS / str(number) for number in itertools.count(1))
    place = next(path for path in numbers if not path.exists())
    place.mkdir(parents=True)
    for path in left:
        path.replace(place / path.name)
    for events in [*place.rglob("*tfevents*")]:
        events.rename(events.with_name(events.name.replace("tfevents", "tf-events")))


def write_metadata(directory: Path, content: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / METADATA, content)


def read_metadata(directory: Path) -> dict[str, Any] | None:
    """job.json. One that has come here with a copy of another job's directory is not this one's."""

    def is_own(content: dict[str, Any]) -> bool:
        return content["directory"] == directory.name and directory.name.endswith(content["key"])

    return read_json(directory / METADATA, _METADATA, is_own)
