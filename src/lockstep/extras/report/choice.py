"""Which number of devices and which rate to take, in words."""

import math

from lockstep.extras.report.communication import Fit
from lockstep.extras.report.measurements import Measurements
from lockstep.extras.report.scaling import BETTER, SINGLE, Point, Series, metric_change

WORTH = 0.5  # the least log speed-up per log of devices for which more are taken: twice as many have to give 1.41x


def chosen(series: Series, maximize: bool) -> Point:
    """The most devices that lose nothing of the metric, each step up to which was worth its devices."""
    best = series.base
    for point in series.points[1:]:
        gain = math.log(point.speedup.mean / best.speedup.mean) / math.log(point.devices / best.devices)
        if gain < WORTH or metric_change(point, series, maximize).lost:
            break
        best = point
    return best


def answer(measured: Measurements, series: Series | None, fit: Fit | None) -> str:
    """One or two sentences, for who reads nothing else."""
    if series is None:
        return f"None of {count(len(measured.rows), 'job')} has finished with a result: nothing can be said yet."
    best = chosen(series, measured.maximize)
    at = f"Take {count(best.devices, 'device')}" + ("" if best.lr is None else f" at lr {best.lr:g}")
    value = f"{measured.metric} {best.metric.mean:.4g}"
    if series.kind == SINGLE:
        rates = len({row.lr for row in best.rows})
        of = f"the best of {rates} rates" if rates > 1 else "the only rate"
        return f"{at}, {of}: {value}. Only one number of devices has results, so nothing is known of speed-up."
    base = series.base
    if best is base:
        begin = f"{at}: {value}, and more devices are not worth it"
    else:
        few = "one device" if base.devices == 1 else f"{base.devices} devices"
        is_better = metric_change(best, series, measured.maximize).verdict == BETTER
        values = f"({best.metric.mean:.4g}, {few} {base.metric.mean:.4g})"
        begin = f"{at}: {best.speedup.mean:.2g}x {few} at {'a better' if is_better else 'the same'} {measured.metric} {values}"
    return f"{begin}{_beyond(best, series, fit, measured)}."


def _beyond(best: Point, series: Series, fit: Fit | None, measured: Measurements) -> str:
    """What the next count gives that was measured, or twice as many by the model: how much faster, at how many times the cost."""
    more = next((other for other in series.points if other.devices > best.devices), None)
    if more is not None:
        faster = more.speedup.mean / best.speedup.mean
        lost = metric_change(more, series, measured.maximize).lost
        cost = f"cost {more.devices / best.devices / faster:.2g}x the device-hours"
        return f"; {more.devices} give {faster:.2g}x the speed and {f'lose {lost:.2g} of {measured.metric}' if lost else cost}"
    if fit is None:
        return ""
    setting, twice = series.setting, 2 * best.devices
    faster = fit.predict(lambda step: setting.rate(step, twice) / setting.rate(step, best.devices))
    low, high = faster.bounds
    times = f"{low:.2g}x to {high:.2g}x" if high > 1.2 * low else f"{faster.mean:.2g}x"  # a range where it is not known well
    return f"; {twice} would give {times} the speed and cost {2 / faster.mean:.2g}x the device-hours (predicted)"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
