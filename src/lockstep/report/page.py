"""The page of a sweep: report.html, report.md and the pictures in SWEEP_DIR/report/.

A page has a title, an answer, which is its first sentence, and blocks. A block is a dict: {"heading": TEXT}, {"text": TEXT},
{"list": [TEXT, ...]}, {"table": [[TEXT, ...], ...], "columns": [NAME, ...]}, or {"picture": NAME, "alt": what it shows, "draw": a
function that returns matplotlib's Figure}. Each section is a function that yields blocks.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy

from lockstep.atomic_files import read_json, replace_text
from lockstep.errors import config_error
from lockstep.report import charts
from lockstep.report.choice import WORTH, answer, choose, count
from lockstep.report.measurements import Measurements, read
from lockstep.report.series import STRONG, WEAK, Point, Series, find_series
from lockstep.sweeps.jobs import FINISHED
from lockstep.sweeps.table import shorten

Block = dict[str, Any]
Times = dict[int, tuple[list[int], list[float]]]  # bytes and seconds of an all-reduce by number of processes
_HEADINGS = {WEAK: "Weak scaling: {} samples per device", STRONG: "Strong scaling: {} samples in every global batch"}
_TERMS = f"""Speed is samples per second of the whole training, with validation and checkpoints, as metrics.json and the \
terminal have it; efficiency is the speed-up divided by that of ideal devices. Brackets hold 95% confidence intervals over jobs. \
More devices are taken as long as the metric does not get worse and twice as many give {2**WORTH:.2f}x the speed."""
_ORIGIN = ("git_commit", "device_name", "host", "cpu_count", "platform", "threads", "precision", "python", "versions")
_AGREES = 1.1  # a step that takes so many times what explains it is doubted
_BYTES = {"16-true": 2, "bf16-true": 2, "64-true": 8}  # of a gradient, by trainer.precision; others have four
_OPTIONS: Any = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("lockstep.report"), autoescape=jinja2.select_autoescape(["html"]), **_OPTIONS
)


def write_report(sweep_dir: Path, only: Sequence[str] = (), times: Times | None = None) -> tuple[str, Path]:
    """Return the answer and the path of the HTML file; of the jobs that have the overrides `only`, and the `times` of an
    all-reduce. Raises ConfigError if there is no sweep."""
    page = scaling_page(read(sweep_dir, only), times)
    folder = sweep_dir / "report"
    folder.mkdir(exist_ok=True)
    pictures = {block["picture"]: block["draw"] for block in page["blocks"] if "draw" in block}
    images = {name: charts.save(draw, folder / f"{name}.png") for name, draw in pictures.items()}
    replace_text(folder / "report.md", render("report.md", page))
    replace_text(folder / "report.html", render("report.html", page | {"images": images}))
    return page["answer"], folder / "report.html"


def scaling_page(measured: Measurements, times: Times | None = None) -> dict[str, Any]:
    """Every section that has something to say of the measurements."""
    series = find_series(measured)
    blocks = [*scaling(measured, series), *missing(measured, series), *learning_rate(measured, series)]
    blocks += [*all_reduce(series, times or {}), *origin(measured)]
    title = f"Speed and {measured.metric} by number of devices: the sweep in {measured.directory.name}"
    return {"title": title, "answer": answer(measured, series), "blocks": blocks}


def render(template: str, page: dict[str, Any]) -> str:
    return _templates.get_template(template).render(page)


def scaling(measured: Measurements, series: Series) -> Iterator[Block]:
    """The first screen: picture, table, and what they are based on."""
    if len(series.points) > 1:
        alt = "Samples per second and efficiency by number of devices, with the ideal line"
        yield {"picture": "scaling", "alt": alt, "draw": lambda: charts.scaling(series)}
    if series.points:
        taken = choose(series)
        columns = ["devices", "best lr", measured.metric, "change", "samples/s", "speed-up", "efficiency"]
        rows = [_row(point, point is series.base, point is taken) for point in series.points]
        yield {"heading": _HEADINGS.get(series.kind, "Devices").format(series.batch)}
        yield {"columns": [*columns, "global batch", "jobs"], "table": rows}
    rows, config = measured.rows, measured.rows[0].config
    names = {name: config.get(f"{name}._target_") for name in ("model", "model.net", "datamodule")}
    what = [f"{name} {target.rpartition('.')[2]}" for name, target in names.items() if target]
    axes = {name: dict.fromkeys(str(getattr(row, name)) for row in rows) for name in ("devices", "lr", "seed")}
    grid = "; ".join([*(f"{name} {', '.join(values)}" for name, values in axes.items()), *what])
    yield {"text": f"Based on {len(measured.finished)} of {len(rows)} jobs, which have finished ({grid}). {_TERMS}"}


def _row(point: Point, is_base: bool, is_taken: bool) -> list[str]:
    speed = [f"{point.throughput:,.0f}", f"{point.speedup:.2f}", f"{point.efficiency:.0%}"]
    metric = ["" if point.lr is None else f"{point.lr:g}", f"{point.metric:.4g}", "" if is_base else str(point.change)]
    return [f"{point.devices}{' (taken)' * is_taken}", *metric, *speed, str(point.global_batch), str(len(point.rows))]


def missing(measured: Measurements, series: Series) -> Iterator[Block]:
    """Yield nothing if the sweep is complete and its jobs can be compared."""
    rest = [row for row in measured.rows if row.status != FINISHED]
    items = [f"{row.job}: {row.status}{f' ({shorten(row.reason)})' if row.reason else ''}" for row in rest]
    for variant, number in measured.left_out.items():
        words = " ".join(variant)
        items.append(f"{count(number, 'job')} of {words} left out: --only {words} is a report of them.")
    if others := len(measured.finished) - sum(len(point.rows) for point in series.points):
        items.append(f"{count(others, 'job')} of other batch sizes left out, or without a speed: --only KEY=VALUE chooses some.")
    if series.points and all(one.interval is None for point in series.points for one in point.rates.values()):
        items.append("No job was repeated with other seeds: with seed=0,1,2 in the sweep each metric has an interval.")
    if len(devices := _distinct(measured, "device_name")) > 1:
        items.append(f"Jobs ran on several kinds of device: {', '.join(devices)}.")
    if items:
        yield {"heading": "What is missing, and what to be careful about"}
        yield {"list": items}


def learning_rate(measured: Measurements, series: Series) -> Iterator[Block]:
    """The final metric by number of devices and rate."""
    if len({lr for point in series.points for lr in point.rates if lr is not None}) < 2:
        return
    yield {"heading": "Learning rates"}
    alt = f"{measured.metric} by learning rate, a line for each number of devices"
    yield {"picture": "rates", "alt": alt, "draw": lambda: charts.rates(series, measured.metric)}
    several = [(point, [*point.rates]) for point in series.points if len(point.rates) > 1]
    if edges := [str(point.devices) for point, rates in several if point.lr in (rates[0], rates[-1])]:
        rest = "the best rate is the smallest or the largest that was tried: a better one may lie beyond."
        yield {"text": f"With devices={', '.join(edges)} {rest}"}


def origin(measured: Measurements) -> Iterator[Block]:
    """Yield the hardware and versions of the jobs."""
    rows = measured.rows
    facts = {"sweep": f"{measured.directory} (its jobs one by one: results.csv there)", "chosen": " ".join(rows[0].variant)}
    facts |= {"overrides of all jobs": " ".join(item for item in rows[0].overrides if all(item in row.overrides for row in rows))}
    facts |= {name: re.sub("[{}']", "", "; ".join(_distinct(measured, name))) for name in _ORIGIN}
    yield {"heading": "Where the numbers come from"}
    yield {"list": [f"{name}: {text}" for name, text in facts.items() if text]}


def read_all_reduce(path: Path) -> Times:
    """Read what lockstep allreduce --json wrote. Raises ConfigError if it has no times."""
    processes = (read_json(path) or {}).get("processes")
    if not processes:
        raise config_error("--all-reduce", path, "has no times of an all-reduce; use what lockstep allreduce --json wrote")
    return {int(count): (one["sizes"], one["seconds"]) for count, one in processes.items()}


def all_reduce(series: Series, times: Times) -> Iterator[Block]:
    """Yield the table, and at which counts a step takes longer than the all-reduce explains."""
    rows, unexplained = [], []
    for point in series.points:
        if point.devices in times:
            alone, step = _seconds(point.rows[0].record, *times[point.devices]), point.global_batch / point.throughput.mean
            ideal = step * point.efficiency.mean
            rows.append([str(point.devices), *(f"{1000 * seconds:.3g}" for seconds in (alone, ideal, step))])
            unexplained += [str(point.devices)] if step > _AGREES * (ideal + alone) else []
    if rows:
        yield {"heading": "The all-reduce of the gradients, measured apart"}
        yield {"columns": ["devices", "ms alone", "ms of a step, ideal", "ms of a step, measured"], "table": rows}
    if unexplained:
        words = "a step takes longer than an ideal one and the all-reduce together: it waits for something else, data say."
        yield {"text": f"These numbers do not agree. With devices={', '.join(unexplained)} {words}"}


def _seconds(record: dict[str, Any], sizes: list[int], seconds: list[float]) -> float:
    """Interpolate between the measured sizes; a larger message takes as much longer as it is larger."""
    size = (record.get("parameters") or 0) * _BYTES.get(str(record.get("precision")), 4)
    return float(numpy.interp(size, sizes, seconds)) * max(1.0, size / sizes[-1])


def _distinct(measured: Measurements, name: str) -> list[str]:
    """Return each value that the finished jobs have recorded under this name, once."""
    return [*dict.fromkeys(str(value) for row in measured.finished if (value := row.record.get(name)) is not None)]
