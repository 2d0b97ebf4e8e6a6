"""What a job's directory says of the job, whichever of its files are damaged; and what failed attempts leave in it."""

import itertools
from pathlib import Path
from typing import Any, get_args

from lockstep.atomic_files import read_json, write_json
from lockstep.runs.mirror import FILE as MIRROR
from lockstep.runs.record import Status

STATES = FINISHED, FAILED, INTERRUPTED, RUNNING, WAITING = "finished", "failed", "interrupted", "running", "waiting"
CARD = "job.json"  # which job of which sweep this is: enough to write a lost manifest anew
ATTEMPTS = "attempts"
SEARCH = "search.json"  # beside the directories of jobs that are a search's trials: which study it is, of how many
PRUNED = "pruned_after"  # in the record of a trial that was ended early: the number of its validations
RECORDED = ("world_size", "global_batch_size", "lr", "samples_per_second", "train_time", "wall_time")


def record_of(directory: Path) -> dict[str, Any] | None:
    """metrics.json, which a run writes last."""

    def fits(content: dict[str, Any]) -> bool:
        metrics: Any = content.get("metrics")
        numbers = [content.get(name) for name in RECORDED]
        return _is_metrics(metrics) and content.get("optimized_metric") in metrics and all(map(_is_number_or_none, numbers))

    return read_json(directory / "metrics.json", fits)


def progress_of(directory: Path) -> dict[str, Any]:
    """progress.json, of how far training is; empty where there is none."""
    numbers = ("epoch", "epochs", "seconds_per_epoch", "samples_per_second", "step", "share", "seconds_left")

    def fits(content: dict[str, Any]) -> bool:
        return _is_metrics(content.get("metrics", {})) and all(_is_number_or_none(content.get(name)) for name in numbers)

    return read_json(directory / "progress.json", fits) or {}


def trials_of(sweep_dir: Path) -> int | None:
    """How many trials a search has in all; None where the sweep is none."""
    return (read_json(sweep_dir / SEARCH, lambda content: isinstance(content.get("n_trials"), int | None)) or {}).get("n_trials")


def status_of(directory: Path) -> tuple[str | None, str | None]:
    """Of status.json the status and the reason; None where it does not say."""

    def fits(content: dict[str, Any]) -> bool:
        known = content.get("status") in get_args(Status)
        return known and isinstance(content.get("reason"), str | None)

    content = read_json(directory / "status.json", fits) or {}
    return content.get("status"), content.get("reason")


def judged(directory: Path, died: str = "the sweep process died") -> tuple[str, str | None, float | None]:
    """Status, reason and metric of a job that no process runs, by what it has left; `died` where that says nothing. The record
    is written last: where it is there, a lost status changes nothing."""
    status, reason = status_of(directory)
    record = record_of(directory)
    if record is not None and status in ("finished", None):
        return judge_record(directory, record)
    if status == "failed":
        return FAILED, reason, None
    is_begun = status is not None or (directory / ".hydra").is_dir()
    return (INTERRUPTED, reason or died, None) if is_begun else (WAITING, None, None)


def judge_record(directory: Path, record: dict[str, Any]) -> tuple[str, str | None, float | None]:
    """Status, reason and metric of a job that has written its record: metrics that are not finite, in the record or in
    its last epoch, are a failure."""
    latest = progress_of(directory).get("metrics", {})
    if infinite := sorted({name for metrics in (latest, record["metrics"]) for name, value in metrics.items() if value is None}):
        return FAILED, f"{', '.join(infinite)} not finite", None
    return FINISHED, None, record["metrics"][record["optimized_metric"]]


def archive(directory: Path) -> None:
    """Moves what an attempt has left to attempts/NUMBER, but for the note of where the directory is copied to. Event files get
    a name that TensorBoard passes over: it would show the attempt as another run."""
    left = [path for path in directory.iterdir() if path.name not in (ATTEMPTS, CARD, MIRROR)]
    if not left:
        return
    numbers = (directory / ATTEMPTS / str(number) for number in itertools.count(1))
    place = next(path for path in numbers if not path.exists())
    place.mkdir(parents=True)
    for path in left:
        path.replace(place / path.name)
    for events in [*place.rglob("*tfevents*")]:
        events.rename(events.with_name(events.name.replace("tfevents", "tf-events")))


def write_card(directory: Path, content: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CARD, content | {"directory": directory.name})


def card_of(directory: Path) -> dict[str, Any] | None:
    """job.json. One that has come here with a copy of another job's directory is not this one's."""
    kinds = {"key": str, "number": int, "overrides": list, "devices": int, "command": list, "config": dict}
    kinds |= {"optimized_metric": str, "optimized_mode": str, "sweep_command": list, "cwd": str}

    def fits(content: dict[str, Any]) -> bool:
        is_well_formed = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
        return is_well_formed and content.get("directory") == directory.name and directory.name.endswith(content["key"])

    return read_json(directory / CARD, fits)


def cards(sweep_dir: Path) -> dict[str, dict[str, Any]]:
    """The cards of all job directories by the jobs' identities, in the order of their numbers."""
    found = [card for path in sweep_dir.glob(f"*/{CARD}") if (card := card_of(path.parent)) is not None]
    return {card["key"]: card for card in sorted(found, key=lambda card: card["number"])}


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number_or_none, value.values()))
