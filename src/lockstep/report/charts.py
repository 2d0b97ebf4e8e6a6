"""The report's pictures, in colours that the colour-blind tell apart."""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy
from matplotlib.figure import Figure

from lockstep.atomic_files import replacing
from lockstep.report.series import Estimate, Series

_STYLE: Any = ["tableau-colorblind10", {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}]
_SIZE: Any = {"figsize": (8, 3.2), "layout": "constrained"}


def save(draw: Callable[[], Figure], path: Path) -> str:
    """Write a picture as PNG, and return it as a data URL."""
    content = io.BytesIO()
    with matplotlib.style.context(_STYLE):
        draw().savefig(content, format="png", dpi=160)
    with replacing(path, "wb") as file:
        file.write(content.getvalue())
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def scaling(series: Series) -> Figure:
    """Draw throughput with the ideal line, and efficiency."""
    figure = Figure(**_SIZE)
    left, right = figure.subplots(1, 2)
    counts = [point.devices for point in series.points]
    ideal = [series.base.throughput.mean * n / series.base.devices for n in counts]
    speeds, parts = [point.throughput for point in series.points], [point.efficiency for point in series.points]
    for axis, label, line, values in (
        (left, "samples per second", ideal, speeds),
        (right, "efficiency", [1] * len(counts), parts),
    ):
        axis.plot(counts, line, "--", color="#6b6b6b", label="ideal")
        _plot(axis, counts, values, label="measured", linestyle="")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, list(map(str, counts)))
        axis.minorticks_off()
        axis.set(xlabel="devices", ylabel=label, ylim=(0, 1.1 * max(*line, *(value.mean for value in values))))
    left.legend()
    return figure


def rates(series: Series, metric: str) -> Figure:
    """Draw the final metric over the rates, a line for each number of devices."""
    figure = Figure(**_SIZE)
    axis = figure.subplots()
    for point in series.points:
        known = {lr: value for lr, value in point.rates.items() if lr}  # a logarithm has no place for 0
        if known:
            _plot(axis, [*known], [*known.values()], label=f"devices={point.devices}")
    axis.set(xlabel="learning rate", ylabel=metric, xscale="log")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _plot(axis: Any, places: Sequence[float], values: Sequence[Estimate], **style: Any) -> None:
    means, (low, high) = numpy.array([value.mean for value in values]), numpy.transpose([value.bounds for value in values])
    axis.errorbar(places, means, yerr=numpy.maximum([means - low, high - means], 0), capsize=3, marker="o", **style)
