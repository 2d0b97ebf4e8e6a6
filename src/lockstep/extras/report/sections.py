"""The sections of the report about what was measured. Each is a function that yields the blocks of page.py."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.console import join_first
from lockstep.extras.report import charts
from lockstep.extras.report.choice import WORTH, choose, count
from lockstep.extras.report.measurements import Measurements, distinct
from lockstep.extras.report.series import NAMES, Point, Series
from lockstep.sweeps.jobs import FINISHED
from lockstep.sweeps.table import shorten

Block = dict[str, Any]
_TERMS = f"""Speed is samples per second of the whole training, with validation and checkpoints, as metrics.json and the \
terminal have it; efficiency is the speed-up over that of ideal devices. Brackets hold 95% confidence intervals over repeats. \
More devices are taken as long as the metric does not get worse and twice as many give {2**WORTH:.2f}x the speed."""
_SEVERAL = {"git_commit": "commits", "device_name": "kinds of device", "precision": "precisions", "threads": "numbers of threads"}
_ORIGIN = ("git_commit", "device_name", "host", "cpu_count", "platform", "threads", "precision", "python", "versions")


def scaling(measured: Measurements, series: Sequence[Series]) -> Iterator[Block]:
    """The first screen: picture, table, and what they are based on."""
    if series and len(series[0].points) > 1:
        alt = "Samples per second and efficiency by number of devices, with the ideal line"
        yield {"picture": "scaling", "alt": alt, "draw": lambda: charts.scaling(series[0])}
    taken = choose(series[0]) if series else None
    for one in series:
        columns = [
            "devices",
            "best lr",
            measured.metric,
            "its change",
            "samples/s",
            "speed-up",
            "efficiency",
            "seconds of training",
        ]
        rows = [_row(point, point is one.base, point is taken) for point in one.points]
        yield {"heading": NAMES[one.kind].format(one.batch)}
        yield {"columns": [*columns, "global batch", "jobs"], "table": rows}
    rows, config = measured.rows, measured.rows[0].config
    names = {name: config.get(f"{name}._target_") for name in ("model", "model.net", "datamodule")}
    what = [f"{name} {target.rpartition('.')[2]}" for name, target in names.items() if target]
    axes = {name: dict.fromkeys(str(getattr(row, name)) for row in rows) for name in ("devices", "lr", "seed")}
    grid = "; ".join([*(f"{name} {', '.join(values)}" for name, values in axes.items()), *what])
    yield {"text": f"Based on {len(measured.finished)} of {len(rows)} jobs, which have finished ({grid}). {_TERMS}"}


def _row(point: Point, is_base: bool, is_taken: bool) -> list[str]:
    seconds = f"{point.seconds:.3g}" if point.seconds else ""
    speed = [f"{point.throughput:,.0f}", f"{point.speedup:.2f}", f"{point.efficiency:.0%}", seconds]
    metric = ["" if point.lr is None else f"{point.lr:g}", f"{point.metric:.4g}", "" if is_base else str(point.change)]
    return [f"{point.devices}{' (taken)' * is_taken}", *metric, *speed, str(point.global_batch), str(len(point.rows))]


def missing(measured: Measurements, series: Sequence[Series]) -> Iterator[Block]:
    """Yield nothing if the sweep is complete and its jobs can be compared."""
    rest = [row for row in measured.rows if row.status != FINISHED]
    items = [f"{row.job}: {row.status}{f' ({shorten(row.reason)})' if row.reason else ''}" for row in rest]
    for variant, number in measured.left_out.items():
        words = " ".join(variant)
        how = f"of {words} left out: --only {words} is a report of them" if words else "of another config left out"
        items.append(f"{count(number, 'job')} {how}.")
    if series and all(one.interval is None for point in series[0].points for one in point.rates.values()):
        items.append("Nothing was repeated: seed=0,1,2 in the sweep would say how far the metric is chance.")
    samples = [point.throughput.mean * point.seconds.mean for one in series[:1] for point in one.points if point.seconds]
    if samples and max(samples) > 1.1 * min(samples):
        items.append(
            "Some counts trained on more samples, or went on after a stop: their seconds do not follow from their speed."
        )
    values = {name: distinct(measured.finished, name) for name in (*_SEVERAL, "git_dirty")}
    items += [f"Jobs of several {_SEVERAL[name]}: {join_first(values[name])}." for name in _SEVERAL if len(values[name]) > 1]
    items += ["Some jobs ran with changes that were not committed."] if "True" in values["git_dirty"] else []
    if items:
        yield {"heading": "What is missing, and what to be careful about"}
        yield {"list": items}


def learning_rate(measured: Measurements, series: Sequence[Series]) -> Iterator[Block]:
    """The final metric by number of devices and rate."""
    points = series[0].points if series else []
    if len({lr for point in points for lr in point.rates if lr is not None}) < 2:
        return
    yield {"heading": "Learning rates"}
    alt = f"{measured.metric} by learning rate, a line for each number of devices"
    yield {"picture": "rates", "alt": alt, "draw": lambda: charts.rates(series[0], measured.metric)}
    ends = {point.devices: [*point.rates][:: max(1, len(point.rates) - 1)] for point in points if len(point.rates) > 1}
    if edges := [str(point.devices) for point in points if point.lr in ends.get(point.devices, ())]:
        rest = "the best rate is the smallest or the largest that was tried: a better one may lie beyond."
        yield {"text": f"With devices={', '.join(edges)} {rest}"}


def origin(measured: Measurements) -> Iterator[Block]:
    """Return the hardware and versions of the jobs."""
    rows = measured.rows
    facts = {"sweep": f"{measured.directory} (its jobs one by one: results.csv there)", "chosen": " ".join(rows[0].variant)}
    facts |= {"overrides of all jobs": " ".join(item for item in rows[0].overrides if all(item in row.overrides for row in rows))}
    facts |= {name: re.sub("[{}']", "", "; ".join(distinct(measured.finished, name))) for name in _ORIGIN}
    yield {"heading": "Where the numbers come from"}
    yield {"list": [f"{name}: {text}" for name, text in facts.items() if text]}
