"""Choice of a number of devices and a rate, in words."""

import math

from lockstep.report.measurements import Measurement, Measurements
from lockstep.report.series import BETTER, CHANCE, MIXED, Estimate, Point, Series, geometric

IMPOSSIBLE = 1.1  # an efficiency that neither caches nor the noise of a quiet machine explain
BUSY = 1.25  # load per core of the machine above which processes wait for a core
WORTH = 0.5  # the least log speed-up per log of devices for which more are taken: twice as many have to give 1.41x


def answer(measured: Measurements, series: Series) -> str:
    """A few sentences, for a reader of nothing else."""
    if not series.points:
        words = f"None of {count(len(measured.rows), 'job')} has finished with a result: nothing can be said yet."
    elif why := why_unclear(series):
        points = [
            f"{one.metric.mean:.4g} on {_place(one)}{f' ({one.change.verdict})' * (one is not series.base)}"
            for one in series.points
        ]
        words = f"No claim about speed: {why}. {measured.metric} is {', '.join(points)}."
    else:
        words = _recommendation(series, measured.metric)
    shown = len(measured.rows)
    return words if shown == measured.total else f"{words} This is of {shown} of the sweep's {measured.total} jobs."


def why_unclear(series: Series) -> str | None:
    """Return why nothing can be said of speed, or None if something can."""
    if len(series.points) < 2:
        return "only one number of devices has results"
    if series.kind == MIXED:
        return "neither the batch of a device nor the global batch is the same over the counts"
    if doubtful := [one for one in series.points if one.efficiency.mean > IMPOSSIBLE]:
        faster = f"{doubtful[0].devices} devices were {doubtful[0].speedup.mean:.3g}x as fast as {series.base.devices}"
        return f"{faster}, more than ideal; probably other programs were running"
    return _unclear(series.points[1], series.base)


def _unclear(more: Point, best: Point) -> str | None:
    """Return why it is not known whether one count is faster than another, or None if it is."""
    rows, faster = [*best.rows, *more.rows], geometric(more.speeds, best.speeds)
    reasons = [reason for row in rows if (reason := _crowd(row))]
    why = f"{reasons[0]} in {len(reasons)} of {count(len(rows), 'job')}" if reasons else _interval(faster)
    is_known = not reasons and not (faster.interval and faster.interval[0] <= 1 <= faster.interval[1])
    return None if is_known else f"whether {more.devices} devices are faster than {best.devices} is not known ({why})"


def choose(series: Series) -> Point | None:
    """Return the most devices that paid, each count up to them, and lost nothing; None if nothing can be said of speed."""
    if not series.points or why_unclear(series):
        return None
    best = series.base
    for point in series.points[1:]:
        gain = math.log(geometric(point.speeds, best.speeds).mean) / math.log(point.devices / best.devices)
        if gain < WORTH or _unclear(point, best) or point.change.lost:
            break
        best = point
    return best


def _crowd(row: Measurement) -> str | None:
    """Say how a job's machine was crowded, or return None."""
    record, machine = row.record, row.record.get("cpu_count") or math.inf
    threads, cores = record.get("devices", row.devices) * (record.get("threads") or 1), record.get("cores") or machine
    if record.get("accelerator") == "cpu" and threads > cores:
        return f"there were {threads} threads on {count(cores, 'core')}"
    load = record.get("load") or 0.0
    return f"the machine had a load of {load:.1f} on {count(machine, 'core')}" if load > BUSY * machine else None


def _interval(faster: Estimate) -> str:
    return "not repeated" if faster.interval is None else "{:.2f}x to {:.2f}x".format(*faster.interval)


def _place(point: Point) -> str:
    return count(point.devices, "device") + ("" if point.lr is None else f" at lr {point.lr:g}")


def _recommendation(series: Series, metric: str) -> str:
    base, best = series.base, choose(series) or series.base
    if best is base:
        words = f"{metric} {best.metric.mean:.4g}, and more devices are not worth it"
    else:
        few = "one device" if base.devices == 1 else f"{base.devices} devices"
        known = {BETTER: f"a better {metric}", CHANCE: f"no change of {metric} beyond chance"}
        how = known.get(best.change.verdict, f"the same {metric}")
        values = f"({best.metric.mean:.4g}, {few} {base.metric.mean:.4g})"
        words = f"{best.speedup.mean:.2g}x {few} ({_interval(best.speedup)}) at {how} {values}"
    return f"Take {_place(best)}: {words}{_next_count(best, series, metric)}."


def _next_count(best: Point, series: Series, metric: str) -> str:
    """Say what the next measured count would give and cost."""
    more = next((other for other in series.points if other.devices > best.devices), None)
    if more is None:
        return ""
    if why := _unclear(more, best):
        return f"; {why}"
    faster, lost = geometric(more.speeds, best.speeds), more.change.lost
    cost = f"lose {lost:.2g} of {metric}" if lost else f"cost {more.devices / best.devices / faster.mean:.2g}x the device-hours"
    return f"; {more.devices} give {faster.mean:.2g}x the speed and {cost}"


def count(number: float, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
