"""The report's pictures, in colours that the colour-blind tell apart (Okabe and Ito 2008), with marks and words besides."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.rcsetup import cycler
from matplotlib.ticker import LogLocator, StrMethodFormatter

from lockstep.atomic_files import replace_text, replacing
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.measurements import DIVERGED, FAILED, MISSING, Measurements
from lockstep.extras.report.rates import Cell, color_range
from lockstep.extras.report.series import Change, Series
from lockstep.extras.report.step_model import Fit

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
GREY, PALE = "#6b6b6b", "#f0f0f0"
_STYLE: Any = {"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
_STYLE |= {"axes.titlesize": 10, "legend.frameon": False, "figure.constrained_layout.use": True}
_STYLE |= {"axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY])}


def draw(function: Callable[[], Figure]) -> Figure:
    """Calls the function of a picture with the report's style as matplotlib's defaults."""
    with matplotlib.rc_context(_STYLE):
        return function()


def save(figure: Figure, directory: Path, name: str) -> str:
    """Writes NAME.png and NAME.svg, and returns the SVG element for a page that has others too: no ids are shared."""
    text = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):  # ids are made from the salt
        with replacing(directory / f"{name}.png", "wb") as file:
            figure.savefig(file, format="png", dpi=130)
        figure.savefig(text, format="svg", metadata={"Date": None})
    replace_text(directory / f"{name}.svg", text.getvalue())
    element = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>|(?<=<g) id=\"[^\"]*\"", "", element, flags=re.DOTALL)


def scaling(series: Series, fit: Fit | None) -> Figure:
    """Draws throughput with the ideal line, and efficiency."""
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2)
    counts, workload, base = [point.devices for point in series.points], series.workload, series.base.devices
    left.plot(counts, [series.base.throughput.mean * n / base for n in counts], "--", color=GREY, label="ideal")
    right.axhline(1, linestyle="--", color=GREY)
    if fit is not None:
        some = _counts_between(base, counts[-1])
        speeds = [workload.throughput(fit.model, n) for n in some]
        left.plot(some, speeds, color=ORANGE, label="model")
        right.plot(some, [speed / speeds[0] / n * base for n, speed in zip(some, speeds, strict=True)], color=ORANGE)
    _plot_points(left, counts, [point.throughput for point in series.points])
    _plot_points(right, counts, [point.efficiency for point in series.points])
    for point in series.points[1:]:
        where, words = (point.devices, point.throughput.mean), f"{point.speedup.mean:.2g}x\n{point.throughput.mean:,.0f}"
        left.annotate(words, where, xytext=(6, 0), textcoords="offset points", fontsize=8, ha="left", va="center")
    left.set_yscale("log")
    _label_counts(left, counts, "samples per second (logarithmic)")
    _label_counts(right, counts, "efficiency")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    left.margins(x=0.2)
    right.set_ylim(0, max(1.1, *(point.efficiency.mean * 1.1 for point in series.points)))
    left.legend()
    return figure


_TERMS = {"compute": SKY, "fixed cost": BLUE, "bandwidth": ORANGE, "latency": RED}


def step_model(series: Series, fit: Fit, largest: int) -> Figure:
    """Draws the seconds of a step as measured, and the model's terms up to `largest` devices."""
    figure = Figure(figsize=(8, 3.4))
    axis, workload = figure.subplots(), series.workload
    counts = _counts_between(1, largest)
    terms = [workload.terms(fit.model, n) for n in counts]
    names = [name for name in terms[-1] if any(one.get(name) for one in terms)]
    values = [[1000 * one.get(name, 0.0) for one in terms] for name in names]
    axis.stackplot(counts, values, labels=names, colors=[_TERMS[name] for name in names], alpha=0.8)
    bounds = numpy.array([fit.predict(lambda step, n=n: 1000 * workload.seconds(step, n)).bounds for n in counts])
    for side, label in ((0, "95% interval"), (1, None)):
        axis.plot(counts, bounds[:, side], ":", color="black", linewidth=1, label=label)
    measured = [point.step_seconds.scaled(1000) for point in series.points]
    _plot_points(axis, [point.devices for point in series.points], measured, "black")
    _label_counts(axis, [2**i for i in range(largest.bit_length())], "ms per step")
    axis.set(xlim=(0.9, largest * 1.05), ylim=(0, None))
    figure.legend(loc="outside right center")
    return figure


def rate_map(grid: Mapping[tuple[int, float], Cell], measured: Measurements, best: Mapping[int, float | None]) -> Figure:
    """Draws the final metric by number of devices and rate, or how a job has ended that has none; `best` rates are framed."""
    counts, rates = sorted({devices for devices, _ in grid}), sorted({lr for _, lr in grid})
    figure = Figure(figsize=(2.2 + 0.95 * len(rates), 1.3 + 0.55 * len(counts)))
    axis = figure.subplots()
    means = [[cell.metric if (cell := grid.get((n, lr))) else None for lr in rates] for n in counts]
    low, high = color_range(grid.values())
    colors = "cividis" if measured.maximize else "cividis_r"
    image = axis.imshow(numpy.array(means, float), cmap=colors, vmin=low, vmax=high, aspect="auto", origin="lower")
    for row, devices in enumerate(counts):
        for column, lr in enumerate(rates):
            _draw_cell(axis, column, row, grid.get((devices, lr)), image, is_best=best.get(devices) == lr)
    axis.set_xticks(range(len(rates)), [f"{lr:g}" for lr in rates])
    axis.set_yticks(range(len(counts)), list(map(str, counts)))
    axis.set(xlabel="learning rate", ylabel="devices", title=measured.metric)
    axis.spines[:].set_visible(False)
    return figure


_MARKS = {DIVERGED: ("diverged", "xxx", RED), FAILED: ("failed", "///", GREY), MISSING: ("not run", "...", GREY)}


def _draw_cell(axis: Any, x: int, y: int, cell: Cell | None, image: Any, is_best: bool) -> None:
    corner = (x - 0.5, y - 0.5)
    if cell is None:
        axis.add_patch(Rectangle(corner, 1, 1, facecolor=PALE, edgecolor="white"))
    elif cell.metric is None:
        word, hatch, color = _MARKS[cell.status]
        axis.add_patch(Rectangle(corner, 1, 1, facecolor="white", edgecolor=color, hatch=hatch, linewidth=0.5))
        axis.text(x, y, word, ha="center", va="center", backgroundcolor="white", fontsize=8)
    else:
        ink = "white" if sum(image.to_rgba(cell.metric)[:3]) < 1.5 else "black"
        text = f"{cell.metric:.3g}" + (f"\n{cell.unfinished} lost" if cell.unfinished else "")
        axis.text(x, y, text, ha="center", va="center", color=ink, weight="bold" if is_best else None)
        if is_best:
            axis.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor=ink, linewidth=2))


def accuracy(base: int, changes: Sequence[Change], metric: str) -> Figure:
    """Draws the change of the final metric from `base` devices to more."""
    figure = Figure(figsize=(5, 2.8))
    axis = figure.subplots()
    counts = [base, *(change.devices for change in changes)]
    _plot_points(axis, counts, [Estimate(0.0), *(change.amount for change in changes)])
    axis.axhline(0, linestyle="--", color=GREY, linewidth=1)
    _label_counts(axis, counts, f"change of {metric}")
    return figure


def _plot_points(axis: Any, counts: Sequence[int], values: Sequence[Estimate], color: str = BLUE) -> None:
    means, (low, high) = numpy.array([value.mean for value in values]), numpy.transpose([value.bounds for value in values])
    errors = numpy.maximum([means - low, high - means], 0)
    axis.errorbar(counts, means, yerr=errors, fmt="o", color=color, capsize=3, label="measured", zorder=3)


def _counts_between(first: int, last: int) -> list[int]:
    """Returns numbers of devices that are about evenly spaced on a logarithmic axis."""
    return numpy.unique(numpy.geomspace(first, last, 60).round()).astype(int).tolist()


def _label_counts(axis: Any, counts: Sequence[int], label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.minorticks_off()
    axis.set(xlabel="devices", ylabel=label)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)
