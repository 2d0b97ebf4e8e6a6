"""The report's page: what was found, in the order in which a reader asks."""

from collections.abc import Iterator
from statistics import fmean

from lockstep.extras.report import choice, pictures
from lockstep.extras.report.document import Block, Document, Heading, Items, Picture, Table, Text
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.findings import Findings
from lockstep.extras.report.measurements import Measurements
from lockstep.extras.report.model_sections import batch, communication
from lockstep.extras.report.origin import missing, origin
from lockstep.extras.report.rates import cells, fitted_rule, rows_of
from lockstep.extras.report.scaling import EQUAL, STRONG, Change, Point, Series, arrivals, common_target, metric_change


def document(found: Findings) -> Document:
    """Every section that the measurements have something for."""
    parts = (scaling, learning_rate, same_batch, time, communication, batch, missing, origin)
    blocks = [block for part in parts for block in part(found)]
    return Document(f"Scaling report of the sweep in {found.measured.directory.name}", found.answer, blocks)


def scaling(found: Findings) -> Iterator[Block]:
    measured = found.measured
    if measured.compared:
        yield Items(measured.compared)
    ended = f"{len(measured.finished)} of {len(measured.rows)} jobs have finished: {_grid(measured)}"
    if len(measured.finished) < len(measured.rows):
        ended += "; the others stand under What is missing"
    of = "training steps" if measured.is_of_steps else "whole trainings, with validation and checkpoints"
    yield Text(f"{ended}. Times are of {of}. Brackets hold 95% confidence intervals over repeats.")
    if found.starved:
        yield Text("The machine was busy with other things while this was measured: see what to be careful about, below.")
    if (chosen := found.series) and len(chosen.points) > 1:
        words = "Samples per second and efficiency by number of devices, with the ideal line"
        yield Picture("scaling", words, lambda: pictures.scaling(chosen, found.fit))
    taken = choice.chosen(found.series, measured.maximize) if found.series else None
    for series in found.all_series:
        yield Heading(series.name.capitalize())
        yield _table(series, measured.metric, taken)
    if found.series and len(found.series.points) > 1:
        yield Text(
            "More devices are taken as long as nothing of the metric is lost and twice as many give at least "
            f"{2**choice.WORTH:.2f}x the speed: from there on scaling is not free."
        )
    if found.series:
        yield from _arrivals(found.series, found)


def _arrivals(series: Series, found: Findings) -> Iterator[Block]:
    maximize = found.measured.maximize
    target = common_target(series, maximize) if found.assumed.target is None else found.assumed.target
    if target is not None and (first := arrivals(series, target, maximize)):
        yield Heading(f"Time to {found.measured.metric} {target:.4g}")
        rows = [[str(n), _rate(one.lr), shown(one.seconds, ".1f"), shown(one.hours, ".3g")] for n, one in sorted(first.items())]
        yield Table(("devices", "lr that is first there", "seconds", "device-hours"), rows)


def _grid(measured: Measurements) -> str:
    counts = sorted({row.devices for row in measured.rows})
    rates = sorted({row.lr for row in measured.rows if row.lr is not None})
    seeds = {row.seed for row in measured.rows}
    said = [f"{', '.join(map(str, counts))} devices", f"rates {', '.join(f'{rate:g}' for rate in rates)}"]
    return " x ".join([*said, f"{len(seeds)} seeds"] if len(seeds) > 1 else said)


def _table(series: Series, metric: str, chosen: Point | None) -> Table:
    columns = ("devices", "best lr", f"{metric} at it", "samples/s", "speed-up", "efficiency", "ms per step")
    rows = [
        [
            f"{point.devices}{' (taken)' if point is chosen else ''}",
            _rate(point.lr),
            shown(point.metric, ".4g"),
            shown(point.throughput, ",.0f"),
            shown(point.speedup, ".2f"),
            shown(point.efficiency, ".0%"),
            shown(point.step_seconds.scaled(1000), ".3g"),
            shown(point.hours, ".3g"),
            str(point.global_batch),
            str(len(point.rows)),
        ]
        for point in series.points
    ]
    return Table((*columns, "device-hours a job", "global batch", "jobs"), rows)


def learning_rate(found: Findings) -> Iterator[Block]:
    measured, series = found.measured, found.series
    if grid := cells(rows_of(series, measured) if series else measured.rows):
        yield Heading("Learning rates")
        best = {point.devices: point.lr for point in series.points} if series else {}
        words = f"{measured.metric} by number of devices and learning rate; the best of each is framed"
        yield Picture("rates", words, lambda: pictures.rate_map(grid, measured, best))
    rule = fitted_rule(series, measured.maximize) if series else None
    if rule is None:
        return
    others = ", ".join(f"{name} {chance:.0%}" for name, chance in rule.likelihood.items() if name != rule.name)
    yield Text(
        f"The best rate grows as the global batch to the power of {shown(rule.exponent, '.2f')}: of three rules the likeliest "
        f"is {rule.name} ({rule.likelihood[rule.name]:.0%}; {others}), by how coarse the grid is and how the repeats differ."
    )
    if rule.edges:
        where = ", ".join(map(str, rule.edges))
        yield Text(
            f"With devices={where} the best rate is the smallest or the largest that was tried: a better one may lie beyond."
        )


def same_batch(found: Findings) -> Iterator[Block]:
    """Accuracy against devices where only they differ, in the longest such series."""
    series = next((series for series in found.all_series if series.kind == STRONG), None)
    if series is None:
        return
    yield Heading(f"The same global batch of {series.batch}: {found.measured.metric} against devices")
    few = choice.count(series.base.devices, "device")
    words = f"The change of {found.measured.metric} from {few} to more, at one global batch"
    changes = [metric_change(point, series, found.measured.maximize) for point in series.points[1:]]
    yield Picture("accuracy", words, lambda: pictures.accuracy(series.base.devices, changes, found.measured.metric))
    rows = [[str(one.devices), str(one.pairs or "none"), shown(one.amount, "+.2g"), _verdict(one)] for one in changes]
    yield Table(("devices", "pairs of one rate and seed", f"change of {found.measured.metric}", "verdict"), rows)
    yield Text("Whether N processes give what one gives, step by step, is for scripts/parity.py to say.")


def _verdict(change: Change) -> str:
    is_repeated = change.amount.interval is not None or change.verdict == EQUAL
    return change.verdict if is_repeated else f"{change.verdict}, from one run"


def time(found: Findings) -> Iterator[Block]:
    if measured := found.recorded(lambda record: record.get("step_time")):
        yield Heading("Where a step's time goes")
        names = list(dict.fromkeys(name for jobs in measured.values() for parts in jobs for name in parts))
        shares = {n: {name: fmean(parts.get(name, 0.0) for parts in jobs) for name in names} for n, jobs in measured.items()}
        yield Picture("time", "The share of each part of a step, by number of devices", lambda: pictures.time_shares(shares))
        yield Table(("devices", *names), [[str(n), *(f"{share:.0%}" for share in parts.values())] for n, parts in shares.items()])
    if peaks := found.recorded(lambda record: record.get("memory_gib_of_ranks")):
        yield Heading("Memory")
        kind = "process" if found.on_cpu else "device"
        columns = ("devices", f"peak of a {kind}, GiB: most", "least", "balance over the ranks")
        largest = {n: max(jobs, key=max) for n, jobs in peaks.items()}  # of the job that took most
        rows = [(n, max(ranks), min(ranks)) for n, ranks in largest.items()]
        yield Table(columns, [[str(n), f"{most:.3g}", f"{least:.3g}", f"{least / most:.0%}"] for n, most, least in rows])


def shown(value: Estimate, form: str) -> str:
    """The mean, and the interval in brackets where there is one that can be seen."""
    mean, low, high = (format(number, form) for number in (value.mean, *value.bounds))
    return mean if low == mean == high else f"{mean} [{low} to {high}]"


def _rate(lr: float | None) -> str:
    return "" if lr is None else f"{lr:g}"
