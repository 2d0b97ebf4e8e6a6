"""The figures, by matplotlib without its pyplot: nothing is left open."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

COLUMNS = 8
NUMBERED = 20  # classes up to which the cells of a confusion matrix show their numbers
LABELED = 60  # classes up to which its rows and columns have names


def gallery(images: Tensor, targets: Tensor, predictions: Tensor, names: Sequence[str]) -> Figure:
    """Draws images (n, channels, height, width), bytes or from 0 to 1, each under its class; a mistaken one in red.

    All are on one axis: one for each image would take ten times as long.
    """
    height, width, columns = images.shape[2], images.shape[3], min(COLUMNS, len(images))
    gap = max(2, height // 4)  # pixels above an image, for its title
    sheet = _tiled(images.cpu(), gap, columns)
    figure = Figure(figsize=(1.4 * columns, 1.4 * columns * sheet.shape[0] / sheet.shape[1]))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.imshow(sheet.numpy(), interpolation="nearest")
    for number, (target, prediction) in enumerate(zip(targets.tolist(), predictions.tolist(), strict=True)):
        row, column = divmod(number, columns)
        title = str(names[target]) if target == prediction else f"{names[target]} as {names[prediction]}"
        place = (column + 0.5) * (width + gap), row * (height + gap) + 0.7 * gap
        ax.text(*place, title, color="black" if target == prediction else "red", ha="center", fontsize="small")
    return figure


def _tiled(images: Tensor, gap: int, columns: int) -> Tensor:
    """Returns (height, width, 3) of all images on white; of those without three channels the first in grey."""
    shown = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    shown, white = (shown.float().clamp(0, 1), 1.0) if shown.is_floating_point() else (shown, 255)
    tiles = functional.pad(shown, (gap // 2, gap - gap // 2, gap, 0), value=white)
    blank = tiles.new_full((-len(tiles) % columns, *tiles.shape[1:]), white)
    rows = torch.cat([tiles, blank]).unflatten(0, (-1, columns))
    return rows.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)


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
