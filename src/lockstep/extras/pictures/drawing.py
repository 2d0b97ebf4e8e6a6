"""The figures, by matplotlib without its pyplot: nothing is left open."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

COLUMNS = 8
NUMBERED = 20  # classes up to which the cells of a confusion matrix show their numbers
LABELED = 60  # classes up to which its rows and columns have names


def gallery(images: Tensor, targets: Tensor, predictions: Tensor, names: Sequence[str]) -> Figure:
    """Draws images (n, channels, height, width), bytes or from 0 to 1, each under its class; a mistaken one in red."""
    columns = min(COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.2 * columns, 1.4 * rows))
    axes: Sequence[Any] = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, image, target, prediction in zip(axes, images.cpu(), targets.tolist(), predictions.tolist(), strict=False):
        is_right = target == prediction
        title = str(names[target]) if is_right else f"{names[target]} as {names[prediction]}"
        ax.set_title(title, fontsize="small", color="black" if is_right else "red")
        ax.imshow(_pixels(image), interpolation="nearest")
    return figure


def _pixels(image: Tensor) -> Any:
    """Returns (height, width, 3); of an image without three channels the first in grey."""
    shown = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    shown = shown.float().clamp(0, 1) if shown.is_floating_point() else shown
    return shown.permute(1, 2, 0).numpy()


def confusion(counts: Tensor, names: Sequence[str]) -> Figure:
    """Draws counts (classes, classes), rows the true classes, as a table of ever darker cells."""
    size = len(names)
    side = min(12.0, 2 + 0.4 * size)
    figure = Figure(figsize=(side, side), layout="constrained")
    ax = figure.add_subplot(xlabel="predicted", ylabel="true")
    ax.imshow(counts.cpu().numpy(), cmap="Blues")
    if size <= LABELED:
        ax.set_xticks(range(size), names, rotation="vertical")
        ax.set_yticks(range(size), names)
    if size <= NUMBERED:
        for (row, column), count in zip(counts.nonzero().tolist(), counts[counts > 0].tolist(), strict=True):
            color = "white" if count > counts.max() / 2 else "black"
            ax.text(column, row, str(count), color=color, ha="center", va="center", fontsize="small")
    return figure
