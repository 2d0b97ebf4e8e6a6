"""Which number of devices and which rate to take, in words."""

import math

from lockstep.console import join_first
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.measurements import Measurements, distinct
from lockstep.extras.report.series import BETTER, SINGLE, Point, Series, metric_change

IMPOSSIBLE = 1.1  # an efficiency that neither caches nor the noise of a quiet machine explain
ABSURD = 2  # a mean efficiency that is doubted however far repeats differ
WORTH = 0.5  # the least log speed-up per log of devices for which more are taken: twice as many have to give 1.41x


def choose(series: Series, maximize: bool) -> Point:
    """Returns the most devices that lose nothing of the metric, if each step up to them was worth its devices."""
    best = series.base
    for point in series.points[1:]:
        gain = math.log(point.speedup.mean / best.speedup.mean) / math.log(point.devices / best.devices)
        if gain < WORTH or metric_change(point, series, maximize).lost:
            break
        best = point
    return best


def answer(analysis: Analysis) -> str:
    """A few sentences, for a reader of nothing else."""
    left_out = _left_out(analysis.measured)
    if analysis.series is None:
        return (
            f"None of {count(len(analysis.measured.rows), 'job')} has finished with a result: nothing can be said yet.{left_out}"
        )
    return _doubt(analysis.series) + _recommendation(analysis.measured, analysis.series) + left_out


def _left_out(measured: Measurements) -> str:
    """Says of which jobs of the sweep the report is, if these are not all."""
    if len(measured.rows) == measured.total:
        return ""
    which = join_first([f"{number} of {' '.join(variant) or 'another config'}" for variant, number in measured.left_out.items()])
    return f" This is of {len(measured.rows)} of the sweep's {measured.total} jobs{f': left out are {which}' if which else ''}."


def _doubt(series: Series) -> str:
    """Says that more was measured than so many devices can give, and why that may be."""
    doubtful = [one for one in series.points if one.efficiency.bounds[0] > IMPOSSIBLE or one.efficiency.mean > ABSURD]
    if not doubtful:
        return ""
    point = max(doubtful, key=lambda one: one.efficiency.bounds[0])
    threads = distinct([row for one in series.points for row in one.rows], "threads")
    why = f"processes had {join_first(threads)} threads" if len(threads) > 1 else "the machine was busy with something else, say"
    base = count(series.base.devices, "device")
    return f"Don't trust these times: {point.devices} devices were {point.speedup.mean:.3g}x as fast as {base} ({why}). "


def _recommendation(measured: Measurements, series: Series) -> str:
    base, best = series.base, choose(series, measured.maximize)
    at = f"Take {count(best.devices, 'device')}" + ("" if best.lr is None else f" at lr {best.lr:g}")
    value = f"{measured.metric} {best.metric.mean:.4g}"
    if series.kind == SINGLE:
        rates = len({row.lr for row in best.rows})
        among = f"the best of {rates} rates" if rates > 1 else "the only rate"
        return f"{at}, {among}: {value}. Only one number of devices has results, so nothing is known of speed-up."
    if best is base:
        return f"{at}: {value}, and more devices are not worth it{_next_count(best, series, measured)}."
    few = "one device" if base.devices == 1 else f"{base.devices} devices"
    how = "a better" if metric_change(best, series, measured.maximize).verdict == BETTER else "the same"
    values = f"({best.metric.mean:.4g}, {few} {base.metric.mean:.4g})"
    return f"{at}: {best.speedup.mean:.2g}x {few} at {how} {measured.metric} {values}{_next_count(best, series, measured)}."


def _next_count(best: Point, series: Series, measured: Measurements) -> str:
    """Says what the next measured count would give and cost."""
    more = next((other for other in series.points if other.devices > best.devices), None)
    if more is None:
        return ""
    faster = more.speedup.mean / best.speedup.mean
    lost = metric_change(more, series, measured.maximize).lost
    cost = f"cost {more.devices / best.devices / faster:.2g}x the device-hours"
    return f"; {more.devices} give {faster:.2g}x the speed and {f'lose {lost:.2g} of {measured.metric}' if lost else cost}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
