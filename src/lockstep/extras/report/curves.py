"""Curves of jobs that run or have run: scalars by step, as their loggers have written them."""

import csv
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.atomic_files import stamp_of
from lockstep.sweeps.states import FINISHED, RUNNING
from lockstep.sweeps.view import JobView, Rereading

POINTS = 400  # of a curve; of more, TensorBoard's reader leaves some out at random, never the last
LINES = 21  # in a picture
_EVERY_STEP = "lr"  # a scalar that is logged at the last step of all, too
Curve = list[tuple[int, float]]  # step and value


class Curves:
    """Of any number of jobs; read on where they have grown."""

    def __init__(self) -> None:
        self._events: dict[Path, _Events] = {}
        self._table = Rereading(_of_csv, "metrics.csv")

    def of(self, directory: Path, metric: str, is_over: bool = False) -> tuple[Curve, Curve]:
        """The training loss, by the finest of the scalars whose name says so, and the metric: empty where nothing is written of
        them, or not by the loggers of TensorBoard and CSV."""
        found = self._scalars(directory)
        # A run that is over has logged the metrics of its best checkpoint once more, after its last step.
        last = found[_EVERY_STEP][-1][0] if is_over and found.get(_EVERY_STEP) else math.inf
        curves = {name: [point for point in curve if point[0] <= last] for name, curve in found.items()}
        losses = [curve for name, curve in curves.items() if "train" in name and "loss" in name]
        return max(losses, key=len, default=[]), curves.get(metric, [])

    def _scalars(self, directory: Path) -> dict[str, Curve]:
        files = sorted([*directory.glob("events.out.tfevents*"), *directory.glob("*/events.out.tfevents*")])
        if files:
            folder = files[0].parent
            events = self._events.get(folder)
            if events is None or not events.goes_on(files):
                events = self._events[folder] = _Events(folder)
            return events.read(files)
        return next((self._table(path.parent) for path in directory.glob("*/metrics.csv")), {})


class _Events:
    """What TensorBoard's logger has written into a folder, by TensorBoard's own reader."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.backend.event_processing import event_accumulator

        logging.getLogger("tensorboard").setLevel(logging.ERROR)  # that a run has been continued is no news
        sizes = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 1) | {event_accumulator.SCALARS: POINTS}
        self._reader = event_accumulator.EventAccumulator(str(folder), size_guidance=sizes)
        self._marks: dict[Path, Any] = {}
        self._found: dict[str, Curve] = {}

    def goes_on(self, files: Sequence[Path]) -> bool:
        """Are the files that have been read still there? Those of an attempt that has failed are moved away."""
        return self._marks.keys() <= set(files)

    def read(self, files: Sequence[Path]) -> dict[str, Curve]:
        marks = {path: stamp_of(path) for path in files}
        if marks != self._marks:
            self._marks = marks
            try:
                self._reader.Reload()
            except Exception as error:  # a file that goes, or is damaged in a way that the reader does not expect
                logging.getLogger(__name__).debug(f"{files[0].parent}: {error}")
            self._found = {
                tag: _ascending((event.step, event.value) for event in self._reader.Scalars(tag))
                for tag in self._reader.Tags()["scalars"]
            }
        return self._found


def _of_csv(folder: Path) -> dict[str, Curve]:
    """Of the CSV logger; of lines that are half written what can be read."""
    found: defaultdict[str, Curve] = defaultdict(list)
    with suppress(OSError, csv.Error), (folder / "metrics.csv").open(newline="", errors="replace") as file:
        rows: Any = csv.DictReader(file)
        for row in rows:
            for name, value in row.items():
                with suppress(KeyError, TypeError, ValueError):
                    point = int(row["step"]), float(value)
                    found[name].append(point)
    return {name: _thinned(_ascending(curve)) for name, curve in found.items()}


def _ascending(points: Any) -> Curve:
    """What was logged again, by a run that was continued, takes the place of what it had logged; only finite values."""
    curve: Curve = []
    for step, value in points:
        while curve and curve[-1][0] >= step:
            curve.pop()
        if math.isfinite(value):
            curve.append((step, value))
    return curve


def _thinned(curve: Curve) -> Curve:
    every = -(-len(curve) // POINTS)
    return curve[:: max(1, every)] + (curve[-1:] if every > 1 and (len(curve) - 1) % every else [])


def drawn(jobs: Sequence[JobView]) -> Iterator[JobView]:
    """Those whose curves are shown, in their order, where there are too many: those that run, then the best."""

    def rank(job: JobView) -> tuple[bool, bool, float]:
        cost = math.inf if job.metric is None else -job.metric if job.mode == "max" else job.metric
        return job.status != RUNNING, job.status != FINISHED, cost

    keys = {job.key for job in sorted((job for job in jobs if job.tries), key=rank)[:LINES]}
    return (job for job in jobs if job.key in keys)
