"""The sections of the report about what was measured. Each is a function that yields the blocks of page.py."""

from collections.abc import Iterator, Sequence

from lockstep.extras.report import charts, choice
from lockstep.extras.report.analysis import Analysis, Block
from lockstep.extras.report.measurements import STEP, Measurement, Measurements
from lockstep.extras.report.series import KEPT, STRONG, Point, Series, grouped, metric_change

_AGREES = 1.1  # a step that takes so many times what explains it is doubted


def scaling(analysis: Analysis) -> Iterator[Block]:
    measured, longest = analysis.measured, analysis.series
    if facts := _compared(measured.rows):
        yield {"list": facts}
    yield {"text": _overview(measured)}
    is_scaled = longest is not None and len(longest.points) > 1
    if longest and is_scaled:
        alt = "Samples per second and efficiency by number of devices, with the ideal line"
        yield {"picture": "scaling", "alt": alt, "draw": lambda: charts.scaling(longest)}
    taken = choice.choose(longest, measured.maximize) if longest else None
    for series in analysis.all_series:
        yield {"heading": series.name.capitalize()}
        yield _table(series, measured, taken)
    if is_scaled:
        speed = f"twice as many give at least {2**choice.WORTH:.2f}x the speed"
        yield {"text": f"More devices are taken as long as nothing of the metric is lost and {speed}."}


def _compared(rows: Sequence[Measurement]) -> list[str]:
    """What was trained on what, and the overrides that all jobs have."""
    config = next((row.config for row in rows if row.config), {})
    facts = {name: config.get(f"{name}._target_") for name in ("model", "model.net", "datamodule")}
    facts |= {"overrides of all jobs": " ".join(item for item in rows[0].overrides if all(item in row.overrides for row in rows))}
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _overview(measured: Measurements) -> str:
    rows = measured.rows
    counts, rates = sorted({row.devices for row in rows}), sorted({row.lr for row in rows if row.lr is not None})
    axes = [f"{', '.join(map(str, counts))} devices", f"rates {', '.join(f'{rate:g}' for rate in rates)}"]
    axes += [f"{len(seeds)} seeds"] if len(seeds := {row.seed for row in rows}) > 1 else []
    others = "; the others stand under What is missing" if len(measured.finished) < len(rows) else ""
    is_of_steps = any(row.record.get(STEP) for row in measured.finished)
    timed = "training steps" if is_of_steps else "whole trainings, with validation and checkpoints"
    return (
        f"{len(measured.finished)} of {len(rows)} jobs have finished: {' x '.join(axes)}{others}. Times are of {timed}. "
        "Brackets hold 95% confidence intervals over repeats."
    )


def _table(series: Series, measured: Measurements, chosen: Point | None) -> Block:
    columns = ["devices", "best lr", f"{measured.metric} at it", "its change", "samples/s", "speed-up", "efficiency"]
    batch = [] if series.kind == STRONG else ["global batch"]  # which the heading has
    rows = [
        [
            f"{point.devices}{' (taken)' if point is chosen else ''}",
            _rate(point.lr),
            f"{point.metric:.4g}",
            "" if point is series.base else metric_change(point, series, measured.maximize).summary,
            f"{point.throughput:,.0f}",
            f"{point.speedup:.2f}",
            f"{point.efficiency:.0%}",
            f"{point.step_seconds.scaled(1000):.3g}",
            f"{point.hours:.3g}",
            *([str(point.global_batch)] if batch else []),
            str(len(point.rows)),
        ]
        for point in series.points
    ]
    return {"columns": [*columns, "ms per step", "device-hours a job", *batch, "jobs"], "table": rows}


def all_reduce(analysis: Analysis) -> Iterator[Block]:
    """An all-reduce of the gradients as it was measured apart, beside what a step takes more than on ideal devices."""
    if (series := analysis.series) is None:
        return
    rows, unexplained = [], []
    for point in series.points:
        if (alone := analysis.all_reduce_seconds(point.devices)) is None:
            continue
        ideal = point.global_batch / (series.base.throughput.mean * point.devices / series.base.devices)
        numbers = (alone, ideal, point.step_seconds.mean)
        rows.append([str(point.devices), *(f"{1000 * seconds:.3g}" for seconds in numbers)])
        unexplained += [point.devices] if point.step_seconds.mean > _AGREES * (ideal + alone) else []
    if rows:
        yield {"heading": f"The all-reduce of {analysis.gradient_bytes / 1e6:.3g} MB of gradients, measured apart"}
        yield {"columns": ["devices", "ms alone", "ms of a step, ideal", "ms of a step, measured"], "table": rows}
    if unexplained:
        words = "a step takes longer than an ideal one and the all-reduce together: it waits for something else, data say."
        yield {"text": f"These numbers do not agree. With devices={', '.join(map(str, unexplained))} {words}"}


def learning_rate(analysis: Analysis) -> Iterator[Block]:
    """The final metric by number of devices and rate, of the jobs that belong to the series."""
    measured, series = analysis.measured, analysis.series
    kept = KEPT.get(series.kind) if series else None
    rows = [row for row in measured.rows if kept is None or (series and getattr(row, kept) == series.batch)]
    cells = grouped([row for row in rows if row.lr is not None], "devices", "lr")
    if not cells:
        return
    best = {point.devices: point.lr for point in series.points} if series else {}
    yield {"heading": "Learning rates"}
    alt = f"{measured.metric} by number of devices and learning rate; the best of each is framed"
    yield {"picture": "rates", "alt": alt, "draw": lambda: charts.rate_map(cells, measured, best)}
    rates = {n: [lr for devices, lr in cells if devices == n] for n in best}  # in their order
    if edges := [n for n in best if len(rates[n]) > 1 and best[n] in (rates[n][0], rates[n][-1])]:
        rest = "the best rate is the smallest or the largest that was tried: a better one may lie beyond."
        yield {"text": f"With devices={', '.join(map(str, edges))} {rest}"}


def memory(analysis: Analysis) -> Iterator[Block]:
    rows = []
    for devices, records in analysis.records.items():
        if jobs := [ranks for record in records if (ranks := record.get("memory_gib_of_ranks"))]:
            ranks = max(jobs, key=max)  # of the job that took most
            rows.append([str(devices), f"{max(ranks):.3g}", f"{min(ranks):.3g}", f"{min(ranks) / max(ranks):.0%}"])
    if rows:
        most = f"peak of a {'process' if analysis.on_cpu else 'device'}, GiB: most"
        yield {"heading": "Memory"}
        yield {"columns": ["devices", most, "least", "balance over the ranks"], "table": rows}


def _rate(lr: float | None) -> str:
    return "" if lr is None else f"{lr:g}"
