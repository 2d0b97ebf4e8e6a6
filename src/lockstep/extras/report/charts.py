"""The report's pictures, in colours that the colour-blind tell apart (Okabe and Ito 2008), with marks and words besides."""

import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from lockstep.atomic_files import replace_text, replacing
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.measurements import DIVERGED, FAILED, MISSING, Measurement, Measurements
from lockstep.extras.report.series import Series

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
GREY = "#6b6b6b"
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


def scaling(series: Series) -> Figure:
    """Draws throughput with the ideal line, and efficiency."""
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2)
    counts, base = [point.devices for point in series.points], series.base.devices
    left.plot(counts, [series.base.throughput.mean * n / base for n in counts], "--", color=GREY, label="ideal")
    right.axhline(1, linestyle="--", color=GREY)
    _plot_points(left, counts, [point.throughput for point in series.points])
    _plot_points(right, counts, [point.efficiency for point in series.points])
    _label_counts(left, counts, "samples per second")
    _label_counts(right, counts, "efficiency")
    left.set_ylim(bottom=0)
    right.set_ylim(0, max(1.1, *(point.efficiency.mean * 1.1 for point in series.points)))
    left.legend()
    return figure


_ENDS = (DIVERGED, FAILED, MISSING)


def rate_map(
    cells: Mapping[tuple[int, float], Sequence[Measurement]], measured: Measurements, best: Mapping[int, float | None]
) -> Figure:
    """Draws the final metric by number of devices and rate, or how jobs have ended that have none; `best` rates are framed."""
    counts, rates = sorted({devices for devices, _ in cells}), sorted({lr for _, lr in cells})
    figure = Figure(figsize=(2.2 + 0.95 * len(rates), 1.3 + 0.55 * len(counts)))
    axis = figure.subplots()
    means = numpy.full((len(counts), len(rates)), numpy.nan)
    for (devices, lr), rows in cells.items():
        row, column, metrics = counts.index(devices), rates.index(lr), [row.metric for row in rows if row.metric is not None]
        means[row, column] = numpy.mean(metrics) if metrics else numpy.nan
        lost = f"\n{len(rows) - len(metrics)} lost" if len(metrics) < len(rows) else ""
        text = f"{means[row, column]:.3g}{lost}" if metrics else min((one.status for one in rows), key=_ENDS.index)
        frame = {"facecolor": "white", "alpha": 0.8, "edgecolor": "black" if best.get(devices) == lr else "white"}
        axis.text(column, row, text, ha="center", va="center", bbox=frame)
    low, high = colour_range([[row.metric for row in rows if row.metric is not None] for rows in cells.values()])
    colours = "cividis" if measured.maximize else "cividis_r"
    axis.imshow(means, cmap=colours, vmin=low, vmax=high, aspect="auto", origin="lower")
    axis.set_xticks(range(len(rates)), [f"{lr:g}" for lr in rates])
    axis.set_yticks(range(len(counts)), list(map(str, counts)))
    axis.set(xlabel="learning rate", ylabel="devices", title=measured.metric)
    axis.spines[:].set_visible(False)
    return figure


def colour_range(groups: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Returns the values at the ends of a range of colours: the least and the largest mean, or further apart, so that chance does
    not look like a result: by eight standard deviations of the repeats, or without repeats by a tenth of the metric."""
    values = [group for group in groups if group]
    if not values:
        return 0.0, 1.0
    means, repeated = [statistics.fmean(group) for group in values], [group for group in values if len(group) > 1]
    middle = (min(means) + max(means)) / 2
    squares = [sum((value - statistics.fmean(group)) ** 2 for value in group) for group in repeated]
    freedom = sum(len(group) - 1 for group in repeated)
    least = 8 * math.sqrt(sum(squares) / freedom) if repeated else 0.1 * abs(middle)
    half = max(max(means) - min(means), least) / 2
    return middle - half, middle + half


def _plot_points(axis: Any, counts: Sequence[int], values: Sequence[Estimate]) -> None:
    means, (low, high) = numpy.array([value.mean for value in values]), numpy.transpose([value.bounds for value in values])
    errors = numpy.maximum([means - low, high - means], 0)
    axis.errorbar(counts, means, yerr=errors, fmt="o", color=BLUE, capsize=3, label="measured", zorder=3)


def _label_counts(axis: Any, counts: Sequence[int], label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, list(map(str, counts)))
    axis.minorticks_off()
    axis.set(xlabel="devices", ylabel=label)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)
