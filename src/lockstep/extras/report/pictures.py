"""The report's pictures, in colours that the colour-blind tell apart (Okabe and Ito 2008), with marks and words besides."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.patches
import matplotlib.ticker
import numpy
from matplotlib.figure import Figure

from lockstep.atomic_files import replace_text, replacing
from lockstep.extras.report.communication import Fit, StepTime
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.measurements import DIVERGED, FAILED, MISSING, Measurements
from lockstep.extras.report.rates import Cell, span_of
from lockstep.extras.report.scaling import Change, Series

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
GREY, PALE = "#6b6b6b", "#f0f0f0"
_RC: Any = {"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}


def save(figure: Figure, directory: Path, name: str) -> str:
    """NAME.png and NAME.svg; the text of the SVG element, to stand in a page beside others: its ids are its own."""
    text = io.StringIO()
    with matplotlib.rc_context(_RC | {"svg.hashsalt": name}):  # from which ids are made
        with replacing(directory / f"{name}.png", "wb") as file:
            figure.savefig(file, format="png", dpi=130)
        figure.savefig(text, format="svg", metadata={"Date": None})
    replace_text(directory / f"{name}.svg", text.getvalue())
    element = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>|(?<=<g) id=\"[^\"]*\"", "", element, flags=re.DOTALL)


def _axes(columns: int = 1, width: float = 8.0, height: float = 3.2) -> tuple[Figure, list[Any]]:
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def scaling(series: Series, fit: Fit | None) -> Figure:
    """Throughput with the ideal line, and efficiency."""
    figure, (left, right) = _axes(2)
    counts = [point.devices for point in series.points]
    ideal = [series.base.throughput.mean * n / counts[0] for n in counts]
    left.plot(counts, ideal, "--", color=GREY, label="ideal")
    right.axhline(1, linestyle="--", color=GREY)
    setting = series.setting
    _model(left, fit, counts, lambda step, n: setting.rate(step, n))
    _model(right, fit, counts, lambda step, n: setting.rate(step, n) / setting.rate(step, counts[0]) / n * counts[0])
    _points(left, counts, [point.throughput for point in series.points])
    _points(right, counts, [point.efficiency for point in series.points])
    for point in series.points[1:]:
        where, words = (point.devices, point.throughput.mean), f"{point.speedup.mean:.2g}x\n{point.throughput.mean:,.0f}"
        left.annotate(words, where, xytext=(6, 0), textcoords="offset points", fontsize=8, ha="left", va="center")
    left.set_yscale("log")
    _of_counts(left, counts, "samples per second (logarithmic)")
    _of_counts(right, counts, "efficiency")
    left.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    left.margins(x=0.2)
    right.set_ylim(0, max(1.1, *(point.efficiency.mean * 1.1 for point in series.points)))
    left.legend(frameon=False)
    return figure


_TERMS = {"compute": SKY, "fixed cost": BLUE, "bandwidth": ORANGE, "latency": RED}


def step_model(series: Series, fit: Fit, largest: int) -> Figure:
    """Seconds of a step: what was measured, and the model's terms as far as `largest`."""
    figure, (axis,) = _axes(height=3.4)
    setting = series.setting
    counts = _spread(1, largest)
    terms = [setting.terms(fit.model, n) for n in counts]
    names = [name for name in terms[-1] if any(one.get(name) for one in terms)]
    values = [[1000 * one.get(name, 0.0) for one in terms] for name in names]
    axis.stackplot(counts, values, labels=names, colors=[_TERMS[name] for name in names], alpha=0.8)
    bounds = [fit.predict(lambda step, n=n: 1000 * setting.seconds(step, n)).bounds for n in counts]
    for side, label in ((0, "95% interval"), (1, None)):
        axis.plot(counts, [bound[side] for bound in bounds], ":", color="black", linewidth=1, label=label)
    _points(
        axis, [point.devices for point in series.points], [point.step_seconds.scaled(1000) for point in series.points], "black"
    )
    _of_counts(axis, [2**i for i in range(largest.bit_length())], "ms per step")
    axis.set(xlim=(0.9, largest * 1.05), ylim=(0, None))
    figure.legend(loc="outside right center", frameon=False)
    return figure


def rate_map(grid: Mapping[tuple[int, float], Cell], measured: Measurements, best: Mapping[int, float | None]) -> Figure:
    """The final metric by number of devices and rate, and how a job has ended that has none; `best` rates are framed."""
    counts, rates = sorted({devices for devices, _ in grid}), sorted({lr for _, lr in grid})
    figure, (axis,) = _axes(width=2.2 + 0.95 * len(rates), height=1.3 + 0.55 * len(counts))
    image = numpy.full((len(counts), len(rates)), numpy.nan)
    for (devices, lr), cell in grid.items():
        if cell.metric:
            image[counts.index(devices), rates.index(lr)] = cell.metric.mean
    low, high = span_of(grid.values())
    colors = "cividis" if measured.maximize else "cividis_r"
    shown = axis.imshow(image, cmap=colors, vmin=low, vmax=high, aspect="auto", origin="lower")
    for row, devices in enumerate(counts):
        for column, lr in enumerate(rates):
            _cell(axis, column, row, grid.get((devices, lr)), shown, is_best=best.get(devices) == lr)
    axis.set_xticks(range(len(rates)), [f"{lr:g}" for lr in rates])
    axis.set_yticks(range(len(counts)), list(map(str, counts)))
    axis.set(xlabel="learning rate", ylabel="devices", title=measured.metric)
    axis.spines[:].set_visible(False)
    return figure


_MARKS = {DIVERGED: ("diverged", "xxx", RED), FAILED: ("failed", "///", GREY), MISSING: ("not run", "...", GREY)}


def _cell(axis: Any, x: int, y: int, cell: Cell | None, shown: Any, is_best: bool) -> None:
    place = {"xy": (x - 0.5, y - 0.5), "width": 1, "height": 1}
    if cell is None:
        axis.add_patch(matplotlib.patches.Rectangle(**place, facecolor=PALE, edgecolor="white"))
        return
    if cell.metric is None:
        word, hatch, color = _MARKS[cell.status]
        axis.add_patch(matplotlib.patches.Rectangle(**place, facecolor="white", edgecolor=color, hatch=hatch, linewidth=0.5))
        axis.text(x, y, word, ha="center", va="center", backgroundcolor="white", fontsize=8)
        return
    is_dark = shown.norm(cell.metric.mean) < 0.5 if shown.cmap.name == "cividis" else shown.norm(cell.metric.mean) > 0.5
    text = f"{cell.metric.mean:.3g}" + (f"\n{cell.unfinished} lost" if cell.unfinished else "")
    axis.text(x, y, text, ha="center", va="center", color="white" if is_dark else "black", weight="bold" if is_best else None)
    if is_best:
        inner = {"xy": (x - 0.46, y - 0.46), "width": 0.92, "height": 0.92}
        axis.add_patch(matplotlib.patches.Rectangle(**inner, fill=False, edgecolor="white" if is_dark else "black", linewidth=2))


def accuracy(base: int, changes: Sequence[Change], metric: str) -> Figure:
    """The change of the final metric from `base` devices to more."""
    figure, (axis,) = _axes(width=5, height=2.8)
    counts = [base, *(change.devices for change in changes)]
    _points(axis, counts, [Estimate(0.0), *(change.amount for change in changes)])
    axis.axhline(0, linestyle="--", color=GREY, linewidth=1)
    _of_counts(axis, counts, f"change of {metric}")
    return figure


def time_shares(shares: Mapping[int, Mapping[str, float]]) -> Figure:
    """Where a step's time goes, by number of devices: the same parts of each."""
    figure, (axis,) = _axes(width=7, height=1.2 + 0.45 * len(shares))
    names = list(next(iter(shares.values())))
    places, left = numpy.arange(len(shares)), numpy.zeros(len(shares))
    for name, color in zip(names, [BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY] * len(names), strict=False):
        widths = numpy.array([100 * parts[name] for parts in shares.values()])
        axis.barh(places, widths, left=left, color=color, label=name, edgecolor="white")
        left += widths
    axis.set_yticks(places, list(map(str, shares)))
    axis.invert_yaxis()
    axis.set(xlabel="% of a step", ylabel="devices", xlim=(0, 100))
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _points(axis: Any, counts: Sequence[int], values: Sequence[Estimate], color: str = BLUE) -> None:
    """With error bars where there are intervals."""
    means, (low, high) = numpy.array([value.mean for value in values]), numpy.transpose([value.bounds for value in values])
    errors = [means - low, high - means]
    axis.errorbar(counts, means, yerr=numpy.maximum(errors, 0), fmt="o", color=color, capsize=3, label="measured", zorder=3)


def _model(axis: Any, fit: Fit | None, counts: Sequence[int], quantity: Callable[[StepTime, int], float]) -> None:
    if fit is not None:
        some = _spread(counts[0], counts[-1])
        axis.plot(some, [quantity(fit.model, n) for n in some], color=ORANGE, label="model")


def _spread(first: int, last: int) -> list[int]:
    """Numbers of devices from first to last, about evenly on a logarithmic axis."""
    return numpy.unique(numpy.geomspace(first, last, 60).round()).astype(int).tolist()


def _of_counts(axis: Any, counts: Sequence[int], label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.minorticks_off()
    axis.set(xlabel="devices", ylabel=label)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)
