"""Which number of devices and which rate to take, in words."""

import math
from dataclasses import dataclass

from lockstep.reports.communication import Fit
from lockstep.reports.estimates import Estimate
from lockstep.reports.measurements import Measurements
from lockstep.reports.prediction import Setting
from lockstep.reports.scaling import SINGLE, STRONG, Point, Series, metric_change

WORTH = 0.5  # the least log speed-up per log of devices for which more are taken: twice as many have to give 1.41x
SAME = 0.01  # the part of the metric that may be lost where repeats don't say how much is chance


def setting_of(series: Series) -> Setting:
    """How the batch goes with the number of devices."""
    size = series.batch or series.base.global_batch / series.base.devices
    return Setting(global_batch=size) if series.kind == STRONG else Setting(batch=size)


def loss(point: Point, base: Point, maximize: bool) -> float:
    """What of the metric is lost from `base` to `point`, beyond what may be chance; 0 where nothing is."""
    change = metric_change(point, base)
    lost = -change.mean if maximize else change.mean
    chance = (change.interval[1] - change.interval[0]) / 2 if change.interval else 0.0
    return lost if lost > max(SAME * abs(base.metric.mean), chance) else 0.0


def chosen(series: Series, maximize: bool) -> Point:
    """The most devices that lose nothing of the metric, each step up to which was worth its devices."""
    best = series.base
    for point in series.points[1:]:
        gain = math.log(point.speedup.mean / best.speedup.mean) / math.log(point.devices / best.devices)
        if gain < WORTH or loss(point, series.base, maximize):
            break
        best = point
    return best


@dataclass(frozen=True)
class StepUp:
    """From the chosen number of devices to a larger one: how much faster, at how many times the device-hours."""

    devices: int
    faster: Estimate
    cost: float
    lost: float = 0.0
    is_predicted: bool = False


def step_up(point: Point, series: Series, fit: Fit | None, maximize: bool) -> StepUp | None:
    """The next count that was measured, or twice as many by the model."""
    more = next((other for other in series.points if other.devices > point.devices), None)
    if more is not None:
        faster = more.speedup.mean / point.speedup.mean
        cost = more.devices / point.devices / faster
        return StepUp(more.devices, Estimate(faster), cost, loss(more, series.base, maximize))
    if fit is None:
        return None
    setting, twice = setting_of(series), 2 * point.devices
    faster = fit.predict(lambda step: setting.rate(step, twice) / setting.rate(step, point.devices))
    return StepUp(twice, faster, 2 / faster.mean, is_predicted=True)


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
    more = step_up(best, series, fit, measured.maximize)
    base = series.base
    if best is base:
        begin = f"{at}: {value}, and more devices are not worth it"
    else:
        alike, few = _compared(best, base, measured), _few(base.devices)
        values = f"({best.metric.mean:.4g}, {few} {base.metric.mean:.4g})"
        begin = f"{at}: {best.speedup.mean:.2g}x {few} at {alike} {measured.metric} {values}"
    return f"{begin}{'; ' + _said(more, measured.metric) if more else ''}."


def _compared(point: Point, base: Point, measured: Measurements) -> str:
    change = metric_change(point, base)
    is_better = (change.mean > 0) == measured.maximize and abs(change.mean) > SAME * abs(base.metric.mean)
    return "a better" if is_better else "the same"


def _said(more: StepUp, metric: str) -> str:
    if more.lost:
        return f"{more.devices} give {_times(more.faster)} the speed and lose {more.lost:.2g} of {metric}"
    verb, by = ("would give", " (predicted)") if more.is_predicted else ("give", "")
    return f"{more.devices} {verb} {_times(more.faster)} the speed and cost {more.cost:.2g}x the device-hours{by}"


def _times(faster: Estimate) -> str:
    """A range where it is not known well."""
    low, high = faster.interval or (faster.mean, faster.mean)
    return f"{low:.2g}x to {high:.2g}x" if high > 1.2 * low else f"{faster.mean:.2g}x"


def _few(devices: int) -> str:
    return "one device" if devices == 1 else f"{devices} devices"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
