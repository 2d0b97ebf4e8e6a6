"""The parts of the page that go beyond what was measured: the model of communication and the gradient noise scale."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean

from lockstep.extras.report import pictures
from lockstep.extras.report.choice import count
from lockstep.extras.report.communication import Fit, StepTime
from lockstep.extras.report.document import Block, Heading, Items, Picture, Table, Text
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.findings import Assumed, Findings
from lockstep.extras.report.prediction import COUNTS, Network, Setting, levers
from lockstep.extras.report.scaling import STRONG


def communication(found: Findings) -> Iterator[Block]:
    series, fit = found.series, found.fit
    if series is None:
        return
    yield Heading("A model of communication")
    if fit is None:
        yield Text("It needs times of two numbers of devices at least, each with a core to every thread: there are none here.")
        return
    yield Text(
        "T(n) = compute + max(0, 2(n-1)/n * bytes/bandwidth + 2(n-1) * latency - overlap), fitted to the times of the steps."
    )
    words = "Milliseconds of a step by number of devices: measured, and as the model has it, by its terms"
    drawn = int(min(fit.reach, max(16, 2 * fit.counts[-1])))
    yield Picture("model", words, lambda: pictures.step_model(series, fit, drawn))
    one, nodes = series.setting, _nodes(found, fit, series.setting)
    yield Table(("parameter", "value", "known"), list(_parameters(found, fit, one.per_device(series.base.devices))))
    most = series.base.global_batch if series.kind == STRONG else COUNTS[-1]  # a device has a sample at least
    asked = COUNTS if math.isinf(fit.reach) else (int(fit.reach),)
    counts = [n for n in dict.fromkeys((*fit.counts, *asked)) if n <= most]
    yield Heading("Predicted efficiency")
    yield _predictions(found, fit, one, nodes, sorted(counts))
    if math.isfinite(fit.reach):
        yield Text(
            f"Nothing is predicted beyond {fit.reach} devices, twice what was measured: that needs repeats (seed=0,1,2) or three "
            "numbers of devices."
        )
    yield Text(_assumptions(found.assumed, nodes))
    yield from _levers(fit, one, max(n for n in counts if n <= 64))


def _nodes(found: Findings, fit: Fit, one: Setting) -> Setting | None:
    """As `one`, but on nodes of several devices; None where the gradients' size is not known."""
    if not found.bytes:
        return None
    transfer = max(found.bytes / found.assumed.node_bandwidth, fit.model.transfer)  # between nodes it is not quicker
    return replace(one, network=Network(found.assumed.node, transfer, fit.model.latency))


def _parameters(found: Findings, fit: Fit, batch: float) -> Iterator[list[str]]:
    quantities: dict[str, tuple[Callable[[StepTime], float], str]] = {
        "compute, ms": (lambda step: 1000 * step.compute(batch), "per_sample"),
        "bytes / bandwidth, ms": (lambda step: 1000 * step.transfer, "transfer"),
        "latency of a message, us": (lambda step: 1e6 * step.latency, "latency"),
        "overlap, ms": (lambda step: 1000 * step.overlap, "overlap"),
    }
    for name, (quantity, parameter) in quantities.items():
        yield [name, interval(fit.predict(quantity)), _known(parameter, found, fit)]
    if found.bytes and fit.model.transfer:
        bandwidth = found.bytes / fit.model.transfer / 1e9
        yield [f"bandwidth for {found.bytes / 1e6:.3g} MB of gradients, GB/s", f"{bandwidth:.3g}", _known("transfer", found, fit)]


def _known(parameter: str, found: Findings, fit: Fit) -> str:
    if parameter in found.given:
        return "measured apart"
    if not fit.is_sure_of(parameter):
        return "can't be told from the others by these counts"
    return "fitted" if parameter in fit.candidates[0].free else "nothing of it is seen"


def _predictions(found: Findings, fit: Fit, one: Setting, nodes: Setting | None, counts: list[int]) -> Table:
    columns = ["devices", "efficiency in one ring", "speed-up", "limited by"]
    columns += [f"efficiency on nodes of {found.assumed.node}", "limited by"] if nodes else []
    rows = []
    for n in counts:
        row = [f"{n} (measured)" if n in fit.counts else str(n), *_predicted(fit, one, n), _limit(fit, one, n)]
        if nodes:
            row += [_predicted(fit, nodes, n)[0], _limit(fit, nodes, n)]
        rows.append(row)
    return Table(columns, rows)


def _predicted(fit: Fit, setting: Setting, devices: int) -> tuple[str, str]:
    efficiency = fit.predict(lambda step: setting.efficiency(step, devices))
    low, high = efficiency.bounds
    efficiency = Estimate(efficiency.mean, (max(0.0, low), min(1.0, high)))
    return interval(efficiency, ".0%"), interval(efficiency.scaled(devices), ".3g")


def _assumptions(assumed: Assumed, nodes: Setting | None) -> str:
    text = "Taken for granted: every device is as fast, and has as many cores, as those that were measured."
    if nodes is None:
        return text
    return (
        f"{text} Between nodes of {assumed.node} devices: {assumed.node_bandwidth / 1e9:g} GB/s at most (an assumption; "
        "--node and --node-bandwidth set it), and the latency that was fitted."
    )


def _levers(fit: Fit, one: Setting, devices: int) -> Iterator[Block]:
    yield Heading(f"What would move it: {devices} devices, limited by {_limit(fit, one, devices)}")
    yield Text(f"Efficiency as it is: {_predicted(fit, one, devices)[0]}. It would be, with")
    names = sorted(gains := levers(one, fit.model, devices), key=lambda name: -gains[name])
    changed = [fit.predict(lambda step, name=name: levers(one, step, devices)[name]) for name in names]
    yield Items([f"{name}: {interval(one, '.0%')}" for name, one in zip(names, changed, strict=True)])


def _limit(fit: Fit, setting: Setting, devices: int) -> str:
    """All that candidates name, which can't be told from each other."""
    return " or ".join(dict.fromkeys(setting.limit(one.model, devices) for one in fit.candidates))


def batch(found: Findings) -> Iterator[Block]:
    """By McCandlish et al. 2018, arXiv 1812.06162."""
    scales = found.recorded(lambda record: record.get("noise_scale_mean") or record.get("noise_scale"))  # of all of a training
    if not scales or found.series is None:
        return
    means = {n: fmean(values) for n, values in scales.items()}
    yield Heading("How large a batch pays: the gradient noise scale")
    yield Table(("devices", "noise scale, samples"), [[str(n), f"{scale:,.0f}"] for n, scale in means.items()])
    each = found.series.base.global_batch / found.series.base.devices
    devices = max(1, round(max(means.values()) / each))
    yield Text(
        "A batch of the noise scale needs twice the fewest possible steps, and twice the fewest possible samples. At "
        f"{each:.0f} samples per device that is {count(devices, 'device')}: beyond it another one saves few steps, however fast "
        "the network is."
    )


def interval(value: Estimate, form: str = ".3g") -> str:
    low, high = value.bounds
    return f"{value.mean:{form}} [{max(0.0, low):{form}} to {high:{form}}]"
