"""The sections about the model of a step: what was fitted, what it predicts, and what would change it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from lockstep.extras.report import charts
from lockstep.extras.report.analysis import Analysis, Assumptions
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.page import Block
from lockstep.extras.report.prediction import COUNTS, Network, Workload, what_if
from lockstep.extras.report.series import STRONG, Series
from lockstep.extras.report.step_model import Fit, StepModel


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
    last = int(min(fit.reach, max(16, 2 * fit.counts[-1])))
    alt = "Milliseconds of a step by number of devices: measured, and as the model has it, by its terms"
    yield {"picture": "model", "alt": alt, "draw": lambda: charts.step_model(series, fit, last)}
    batch = series.workload.per_device(series.base.devices)
    yield {"columns": ["parameter", "value", "known"], "table": [*_parameters(analysis, fit, batch)]}


def predictions(analysis: Analysis) -> Iterator[Block]:
    series, fit, assumed = analysis.series, analysis.fit, analysis.assumed
    if series is None or fit is None:
        return
    yield {"heading": "Predicted efficiency"}
    nodes = _with_nodes(analysis, fit, series.workload)
    yield _predictions(assumed, fit, series.workload, nodes, _counts(series, fit))
    if math.isfinite(fit.reach):
        why = "twice what was measured: that needs repeats (seed=0,1,2) or three numbers of devices."
        yield {"text": f"Nothing is predicted beyond {fit.reach} devices, {why}"}
    premises = "Taken for granted: every device is as fast, and has as many cores, as those that were measured."
    if nodes is not None:
        premises += f" Between nodes of {assumed.node} devices: {assumed.node_bandwidth / 1e9:g} GB/s at most (an assumption; "
        premises += "--node and --node-bandwidth set it), and the latency that was fitted."
    yield {"text": premises}


def changes(analysis: Analysis) -> Iterator[Block]:
    """What would change the efficiency of the largest count up to 64."""
    series, fit = analysis.series, analysis.fit
    if series is None or fit is None:
        return
    workload, counts = series.workload, _counts(series, fit)
    devices = max((n for n in counts if n <= 64), default=counts[0])
    yield {"heading": f"What would move it: {devices} devices, limited by {_limit(fit, workload, devices)}"}
    yield {"text": f"Efficiency as it is: {_efficiency(fit, workload, devices):.0%}. It would be, with"}
    gains = what_if(workload, fit.model, devices)
    names = sorted(gains, key=lambda name: -gains[name])
    changed = {name: fit.predict(lambda step, name=name: what_if(workload, step, devices)[name]) for name in names}
    yield {"list": [f"{name}: {efficiency:.0%}" for name, efficiency in changed.items()]}


def _counts(series: Series, fit: Fit) -> list[int]:
    """Returns the numbers of devices for which there are predictions: each device has a sample at least."""
    most = series.base.global_batch if series.kind == STRONG else math.inf
    asked = COUNTS if math.isinf(fit.reach) else (int(fit.reach),)
    return sorted({n for n in (*fit.counts, *asked) if n <= most})


def _with_nodes(analysis: Analysis, fit: Fit, workload: Workload) -> Workload | None:
    """Puts the devices on nodes; returns None if the gradients' size is not known."""
    if not analysis.gradient_bytes:
        return None
    transfer = max(analysis.gradient_bytes / analysis.assumed.node_bandwidth, fit.model.transfer)  # no quicker than within a node
    return replace(workload, network=Network(analysis.assumed.node, transfer, fit.model.latency))


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
        return "can't be told from the others by these counts"
    return "fitted" if parameter in fit.candidates[0].free else "nothing of it is seen"


def _predictions(assumed: Assumptions, fit: Fit, one_ring: Workload, nodes: Workload | None, counts: list[int]) -> Block:
    columns = ["devices", "efficiency in one ring", "speed-up", "limited by"]
    columns += [f"efficiency on nodes of {assumed.node}", "limited by"] if nodes else []
    rows = []
    for n in counts:
        efficiency = _efficiency(fit, one_ring, n)
        row = [f"{n} (measured)" if n in fit.counts else str(n), f"{efficiency:.0%}"]
        row += [f"{efficiency.scaled(n):.3g}", _limit(fit, one_ring, n)]
        rows.append(row + ([f"{_efficiency(fit, nodes, n):.0%}", _limit(fit, nodes, n)] if nodes else []))
    return {"columns": columns, "table": rows}


def _efficiency(fit: Fit, workload: Workload, devices: int) -> Estimate:
    efficiency = fit.predict(lambda step: workload.efficiency(step, devices))
    low, high = efficiency.bounds
    return Estimate(efficiency.mean, (max(0.0, low), min(1.0, high)))


def _limit(fit: Fit, workload: Workload, devices: int) -> str:
    """Names what limits by each of the candidates, which can't be told from each other."""
    return " or ".join(dict.fromkeys(workload.limit(one.model, devices) for one in fit.candidates))
