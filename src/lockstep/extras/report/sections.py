"""The sections of the report about what was measured. Each is a function that yields the blocks of page.py."""

from collections.abc import Iterator, Sequence

from lockstep.extras.report import charts, choice
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.measurements import Measurement, Measurements
from lockstep.extras.report.page import Block
from lockstep.extras.report.rates import fit_rule, rate_grid
from lockstep.extras.report.series import EQUAL, STRONG, Change, Point, Series, common_target, find_arrivals, metric_change


def scaling(analysis: Analysis) -> Iterator[Block]:
    measured, longest = analysis.measured, analysis.series
    if facts := _compared(measured.rows):
        yield {"list": facts}
    yield {"text": _overview(measured)}
    if analysis.starved:
        yield {"text": "The machine was busy with other things while this was measured: see what to be careful about, below."}
    is_scaled = longest is not None and len(longest.points) > 1
    if longest and is_scaled:
        alt = "Samples per second and efficiency by number of devices, with the ideal line"
        yield {"picture": "scaling", "alt": alt, "draw": lambda: charts.scaling(longest, analysis.fit)}
    taken = choice.choose(longest, measured.maximize) if longest else None
    for series in analysis.all_series:
        yield {"heading": series.name.capitalize()}
        yield _table(series, measured.metric, taken)
    if is_scaled:
        yield {
            "text": "More devices are taken as long as nothing of the metric is lost and twice as many give at least "
            f"{2**choice.WORTH:.2f}x the speed: from there on scaling is not free."
        }


def _compared(rows: Sequence[Measurement]) -> list[str]:
    """What was trained on what, and the overrides that all jobs have. Jobs of one variant have one model and one data set."""
    config = next((row.config for row in rows if row.config), {})
    record = next((row.record for row in rows if row.record), {})
    net, task, data = (
        str(config.get(f"{key}._target_") or "").rpartition(".")[2] for key in ("model.net", "model", "datamodule")
    )
    parameters = f"{record['parameters']:,} parameters" if record.get("parameters") else ""
    sizes = [f"{value} {name}" for name, value in (record.get("samples") or {}).items() if isinstance(value, int | str)]
    facts = {
        "model": ", ".join(filter(None, (" in ".join(filter(None, (net, task))), parameters))) if net or task else "",
        "data": ", ".join(filter(None, (data, *sizes))),
        "overrides of all jobs": " ".join(item for item in rows[0].overrides if all(item in row.overrides for row in rows)),
    }
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _overview(measured: Measurements) -> str:
    rows = measured.rows
    counts, rates = sorted({row.devices for row in rows}), sorted({row.lr for row in rows if row.lr is not None})
    axes = [f"{', '.join(map(str, counts))} devices", f"rates {', '.join(f'{rate:g}' for rate in rates)}"]
    axes += [f"{len(seeds)} seeds"] if len(seeds := {row.seed for row in rows}) > 1 else []
    others = "; the others stand under What is missing" if len(measured.finished) < len(rows) else ""
    timed = "training steps" if measured.is_of_steps else "whole trainings, with validation and checkpoints"
    return (
        f"{len(measured.finished)} of {len(rows)} jobs have finished: {' x '.join(axes)}{others}. Times are of {timed}. "
        "Brackets hold 95% confidence intervals over repeats."
    )


def _table(series: Series, metric: str, chosen: Point | None) -> Block:
    columns = ["devices", "best lr", f"{metric} at it", "samples/s", "speed-up", "efficiency", "ms per step"]
    rows = [
        [
            f"{point.devices}{' (taken)' if point is chosen else ''}",
            _rate(point.lr),
            f"{point.metric:.4g}",
            f"{point.throughput:,.0f}",
            f"{point.speedup:.2f}",
            f"{point.efficiency:.0%}",
            f"{point.step_seconds.scaled(1000):.3g}",
            f"{point.hours:.3g}",
            str(point.global_batch),
            str(len(point.rows)),
        ]
        for point in series.points
    ]
    return {"columns": [*columns, "device-hours a job", "global batch", "jobs"], "table": rows}


def time_to_target(analysis: Analysis) -> Iterator[Block]:
    if (series := analysis.series) is None:
        return
    measured, target = analysis.measured, analysis.assumed.target
    target = common_target(series, measured.maximize) if target is None else target
    if target is not None and (arrivals := find_arrivals(series, target, measured.maximize)):
        yield {"heading": f"Time to {measured.metric} {target:.4g}"}
        rows = [
            [str(n), _rate(lr), f"{seconds:.1f}", f"{seconds.scaled(n / 3600):.3g}"]
            for n, (lr, seconds) in sorted(arrivals.items())
        ]
        yield {"columns": ["devices", "lr that is first there", "seconds", "device-hours"], "table": rows}


def learning_rate(analysis: Analysis) -> Iterator[Block]:
    measured, series = analysis.measured, analysis.series
    if grid := rate_grid(series, measured):
        yield {"heading": "Learning rates"}
        best = {point.devices: point.lr for point in series.points} if series else {}
        alt = f"{measured.metric} by number of devices and learning rate; the best of each is framed"
        yield {"picture": "rates", "alt": alt, "draw": lambda: charts.rate_map(grid, measured, best)}
    rule = fit_rule(series, measured.maximize) if series else None
    if rule is None:
        return
    others = ", ".join(f"{name} {chance:.0%}" for name, chance in rule.likelihood.items() if name != rule.name)
    yield {
        "text": f"The best rate grows as the global batch to the power of {rule.exponent:z.2f}: of three rules the "
        f"likeliest is {rule.name} ({rule.likelihood[rule.name]:.0%}; {others}), by how coarse the grid is and how the repeats "
        "differ."
    }
    if rule.edges:
        where = ", ".join(map(str, rule.edges))
        rest = "the best rate is the smallest or the largest that was tried: a better one may lie beyond."
        yield {"text": f"With devices={where} {rest}"}


def same_batch(analysis: Analysis) -> Iterator[Block]:
    """Accuracy against devices in the longest series of one global batch, where only the devices differ."""
    series = next((series for series in analysis.all_series if series.kind == STRONG), None)
    if series is None:
        return
    metric = analysis.measured.metric
    changes = [metric_change(point, series, analysis.measured.maximize) for point in series.points[1:]]
    yield {"heading": f"The same global batch of {series.batch}: {metric} against devices"}
    yield {
        "picture": "accuracy",
        "alt": f"The change of {metric} from {choice.count(series.base.devices, 'device')} to more, at one global batch",
        "draw": lambda: charts.accuracy(series.base.devices, changes, metric),
    }
    yield {
        "columns": ["devices", "pairs of one rate and seed", f"change of {metric}", "verdict"],
        "table": [[str(one.devices), str(one.pairs or "none"), f"{one.amount:+.2g}", _verdict(one)] for one in changes],
    }
    yield {"text": "Whether N processes give what one gives, step by step, is for scripts/parity.py to say."}


def _verdict(change: Change) -> str:
    is_repeated = change.amount.interval is not None or change.verdict == EQUAL
    return change.verdict if is_repeated else f"{change.verdict}, from one run"


def memory(analysis: Analysis) -> Iterator[Block]:
    peaks = {
        n: [ranks for record in records if (ranks := record.get("memory_gib_of_ranks"))]
        for n, records in analysis.records.items()
    }
    largest = {n: max(jobs, key=max) for n, jobs in peaks.items() if jobs}  # of the job that took most
    if largest:
        yield {"heading": "Memory"}
        yield {
            "columns": [
                "devices",
                f"peak of a {'process' if analysis.on_cpu else 'device'}, GiB: most",
                "least",
                "balance over the ranks",
            ],
            "table": [
                [str(n), f"{max(ranks):.3g}", f"{min(ranks):.3g}", f"{min(ranks) / max(ranks):.0%}"]
                for n, ranks in largest.items()
            ],
        }


def _rate(lr: float | None) -> str:
    return "" if lr is None else f"{lr:g}"
