"""The sections about the model of a step: what was fitted, and what it predicts."""

import math
from collections.abc import Callable, Iterator

from lockstep.extras.report import charts
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.page import Block
from lockstep.extras.report.series import STRONG, Point
from lockstep.extras.report.step_model import Fit, StepModel, Workload

COUNTS = (8, 16, 64, 1024)  # devices for which there are predictions


def communication(analysis: Analysis) -> Iterator[Block]:
    series, fit = analysis.series, analysis.fit
    if series is None:
        return
    yield {"heading": "A model of communication"}
    if fit is None:
        why = "It needs times of two numbers of devices at least, each with a core to every thread: there are none here."
        yield {"text": why}
        return
    formula = "T(n) = compute + max(0, 2(n-1)/n * bytes/bandwidth + 2(n-1) * latency - overlap)"
    yield {"text": f"{formula}, fitted to the times of the steps."}
    alt = "Milliseconds of a step by number of devices: measured, and as the model has it, by its terms"
    yield {"picture": "model", "alt": alt, "draw": lambda: charts.step_model(series, fit)}
    batch = series.workload.per_device(series.base.devices)
    yield {"columns": ["parameter", "value", "known"], "table": [*_parameters(analysis, fit, batch)]}


def predictions(analysis: Analysis) -> Iterator[Block]:
    series, fit = analysis.series, analysis.fit
    if series is None or fit is None:
        return
    most = series.base.global_batch if series.kind == STRONG else math.inf  # each device has a sample at least
    asked = COUNTS if math.isinf(fit.reach) else (int(fit.reach),)
    counts = sorted({n for n in (*fit.counts, *asked) if n <= most})
    yield {"heading": "Predicted efficiency"}
    columns = ["devices", "efficiency", "speed-up", "limited by"]
    yield {"columns": columns, "table": [_prediction(fit, series.workload, n) for n in counts]}
    if math.isfinite(fit.reach):
        needed = "that needs repeats (seed=0,1,2) or three numbers of devices"
        yield {"text": f"Nothing is predicted beyond {fit.reach} devices, twice what was measured: {needed}."}
    premise = "every device is as fast, and has as many cores, as those that were measured, and so is the network between them"
    yield {"text": f"Taken for granted: {premise}. Between nodes it is slower: --all-reduce takes what was measured there."}


def checked_predictions(analysis: Analysis) -> Iterator[Block]:
    """What the smaller counts alone predict for each larger one, beside what was measured there."""
    series, rows = analysis.series, []
    for point in series.points[2:] if series else ():
        fit = analysis.fit_below(point.devices)
        if series and fit is not None and point.devices <= fit.reach:
            rows.append(_checked(fit, series.workload, point))
    if rows:
        yield {"heading": "Prediction and measurement"}
        columns = ["devices", "fitted on", "samples/s predicted", "samples/s measured", "error", "in the interval"]
        yield {"columns": columns, "table": rows}
        yield {"text": "Each count is predicted by a fit to the smaller ones alone. A negative error says that it was faster."}


def _checked(fit: Fit, workload: Workload, point: Point) -> list[str]:
    predicted = fit.predict(lambda step: workload.throughput(step, point.devices))
    low, high = predicted.bounds
    error = predicted.mean / point.throughput.mean - 1
    is_inside = "yes" if low <= point.throughput.mean <= high else "no"
    counts = ", ".join(map(str, fit.counts))
    return [str(point.devices), counts, f"{predicted:,.0f}", f"{point.throughput:,.0f}", f"{error:+.1%}", is_inside]


def _prediction(fit: Fit, workload: Workload, devices: int) -> list[str]:
    """Returns what all candidates predict: the measurements can't distinguish them."""
    efficiency = fit.predict(lambda step: workload.efficiency(step, devices))
    low, high = efficiency.bounds
    efficiency = Estimate(efficiency.mean, (low, min(1.0, high)))
    limits = dict.fromkeys(workload.limit(one.model, devices) for one in fit.candidates)
    name = f"{devices} (fitted)" if devices in fit.counts else str(devices)
    return [name, f"{efficiency:.0%}", f"{efficiency.scaled(devices):.3g}", " or ".join(limits)]


def _parameters(analysis: Analysis, fit: Fit, batch: float) -> Iterator[list[str]]:
    quantities: dict[str, tuple[Callable[[StepModel], float], str]] = {
        "compute, ms": (lambda step: 1000 * step.seconds(1, batch), "per_sample"),
        "bytes / bandwidth, ms": (lambda step: 1000 * step.transfer, "transfer"),
        "latency of a message, us": (lambda step: 1e6 * step.latency, "latency"),
        "overlap, ms": (lambda step: 1000 * step.overlap, "overlap"),
    }
    for name, (quantity, parameter) in quantities.items():
        yield [name, f"{fit.predict(quantity):.3g}", _source(parameter, analysis, fit)]
    if (size := analysis.gradient_bytes) and fit.model.transfer:
        name = f"bandwidth for {size / 1e6:.3g} MB of gradients, GB/s"
        yield [name, f"{size / fit.model.transfer / 1e9:.3g}", _source("transfer", analysis, fit)]


def _source(parameter: str, analysis: Analysis, fit: Fit) -> str:
    if parameter in analysis.given:
        return "measured apart"
    if not fit.is_sure_of(parameter):
        return "these counts can't distinguish it from the others"
    return "fitted" if parameter in fit.candidates[0].free else "it does not show"
