"""The sections of the report about what was measured. Each is a function that yields the blocks of page.py."""

from collections.abc import Iterator, Sequence

from lockstep.extras.report import charts, choice
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.estimates import estimate
from lockstep.extras.report.goodput import Goodput
from lockstep.extras.report.measurements import STEP, Measurement, Measurements
from lockstep.extras.report.page import Block
from lockstep.extras.report.series import KEPT, STRONG, Point, Series, common_target, first_time, grouped, metric_change


def scaling(analysis: Analysis) -> Iterator[Block]:
    measured, longest = analysis.measured, analysis.series
    if facts := _compared(measured.rows):
        yield {"list": facts}
    yield {"text": _overview(measured)}
    is_scaled = longest is not None and len(longest.points) > 1
    if longest and is_scaled:
        alt = "Samples per second and efficiency by number of devices, with the ideal line"
        yield {"picture": "scaling", "alt": alt, "draw": lambda: charts.scaling(longest, analysis.fit)}
    goodput = analysis.goodput
    taken = choice.choose(longest, goodput, measured.maximize) if longest and goodput else None
    for series in analysis.all_series:
        yield {"heading": series.name.capitalize()}
        own = goodput if goodput and series is longest else Goodput.of(series, measured.maximize, analysis.target)
        yield _table(series, own, measured, taken)
    if is_scaled and goodput:
        yield {
            "text": "More devices are taken as long as nothing of the metric is lost and twice as many give at least "
            f"{2**choice.WORTH:.2f}x the goodput, which is throughput times what a sample is worth for the loss; "
            f"{goodput.source}{'' if goodput.efficiency else ', so that throughput decides'}."
        }


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


def _table(series: Series, goodput: Goodput, measured: Measurements, chosen: Point | None) -> Block:
    columns = ["devices", "best lr", f"{measured.metric} at it", "its change", "samples/s", "speed-up", "efficiency"]
    more = [] if goodput.is_throughput else ["worth of a sample", "goodput"]
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
            *([f"{goodput.efficiency[point.devices]:.2f}", f"{goodput.speedup(point):.2f}"] if more else []),
            f"{point.step_seconds.scaled(1000):.3g}",
            f"{point.hours:.3g}",
            *([str(point.global_batch)] if batch else []),
            str(len(point.rows)),
        ]
        for point in series.points
    ]
    return {"columns": [*columns, *more, "ms per step", "device-hours a job", *batch, "jobs"], "table": rows}


def time_to_target(analysis: Analysis) -> Iterator[Block]:
    """Yields nothing unless every repeat of some count's best rate has reached the target."""
    if (series := analysis.series) is None:
        return
    measured, target = analysis.measured, analysis.target
    target = common_target(series, measured.maximize) if target is None else target
    if target is None:
        return
    rows = []
    for point in series.points:
        times = [first_time(row, target, measured.maximize) for row in point.at_best_rate]
        if len(reached := [time for time in times if time is not None]) == len(times):
            seconds = estimate(reached, low=0.0)
            hours = seconds.scaled(point.devices / 3600)
            rows.append([str(point.devices), _rate(point.lr), f"{seconds:.1f}", f"{hours:.3g}"])
    if rows:
        yield {"heading": f"Time to {measured.metric} {target:.4g}"}
        yield {"columns": ["devices", "best lr", "seconds", "device-hours"], "table": rows}


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
