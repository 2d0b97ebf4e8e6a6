"""Which number of devices and which rate to take, in words."""

import math

from lockstep.console import join_first
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.goodput import Goodput, worth
from lockstep.extras.report.measurements import Measurements, distinct
from lockstep.extras.report.series import BETTER, SINGLE, Point, Series, metric_change

IMPOSSIBLE = 1.1  # an efficiency that neither caches nor the noise of a quiet machine explain
ABSURD = 2  # a mean efficiency that is doubted however far repeats differ
WORTH = 0.5  # the least log speed-up per log of devices for which more are taken: twice as many have to give 1.41x


def choose(series: Series, goodput: Goodput, maximize: bool) -> Point:
    """Returns the most devices that lose nothing of the metric, if each step up to them was worth its devices, by goodput."""
    best = series.base
    for point in series.points[1:]:
        gain = math.log(goodput.speedup(point) / goodput.speedup(best)) / math.log(point.devices / best.devices)
        if gain < WORTH or metric_change(point, series, maximize).lost:
            break
        best = point
    return best


def answer(analysis: Analysis) -> str:
    """A few sentences, for a reader of nothing else."""
    left_out = _left_out(analysis.measured)
    if analysis.series is None or analysis.goodput is None:
        return (
            f"None of {count(len(analysis.measured.rows), 'job')} has finished with a result: nothing can be said yet.{left_out}"
        )
    return _doubt(analysis.series) + _recommendation(analysis, analysis.series, analysis.goodput) + left_out


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


def _recommendation(analysis: Analysis, series: Series, goodput: Goodput) -> str:
    measured = analysis.measured
    base, best = series.base, choose(series, goodput, measured.maximize)
    at = f"Take {count(best.devices, 'device')}" + ("" if best.lr is None else f" at lr {best.lr:g}")
    value = f"{measured.metric} {best.metric.mean:.4g}"
    if series.kind == SINGLE:
        rates = len({row.lr for row in best.rows})
        among = f"the best of {rates} rates" if rates > 1 else "the only rate"
        return f"{at}, {among}: {value}. Only one number of devices has results, so nothing is known of speed-up."
    if best is base:
        return f"{at}: {value}, and more devices are not worth it{_next_count(best, series, goodput, analysis)}."
    few = "one device" if base.devices == 1 else f"{base.devices} devices"
    how = "a better" if metric_change(best, series, measured.maximize).verdict == BETTER else "the same"
    values = f"({best.metric.mean:.4g}, {few} {base.metric.mean:.4g})"
    gain = f"{best.speedup.mean:.2g}x {few}"
    if not goodput.is_throughput:
        gain = f"{goodput.speedup(best):.2g}x the goodput of {few} ({best.speedup.mean:.2g}x the speed)"
    return f"{at}: {gain} at {how} {measured.metric} {values}{_next_count(best, series, goodput, analysis)}."


def _next_count(best: Point, series: Series, goodput: Goodput, analysis: Analysis) -> str:
    """Says what the next measured count, or twice as many by the model, would give and cost."""
    measured, fit = analysis.measured, analysis.fit
    more = next((other for other in series.points if other.devices > best.devices), None)
    if more is not None:
        faster = goodput.speedup(more) / goodput.speedup(best)
        lost = metric_change(more, series, measured.maximize).lost
        cost = f"cost {more.devices / best.devices / faster:.2g}x the device-hours"
        what = f"{faster:.2g}x the {'speed' if goodput.is_throughput else 'goodput'}"
        return f"; {more.devices} give {what} and {f'lose {lost:.2g} of {measured.metric}' if lost else cost}"
    if fit is None:
        return ""
    workload, twice = series.workload, 2 * best.devices
    faster = fit.predict(lambda step: workload.throughput(step, twice) / workload.throughput(step, best.devices))
    what = "speed"
    if goodput.noise_scale is not None:
        faster, what = faster.scaled(worth(best.global_batch, 2 * best.global_batch, goodput.noise_scale)), "goodput"
    low, high = faster.bounds
    times = f"{low:.2g}x to {high:.2g}x" if high > 1.2 * low else f"{faster.mean:.2g}x"
    return f"; {twice} would give {times} the {what} and cost {2 / faster.mean:.2g}x the device-hours (predicted)"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
