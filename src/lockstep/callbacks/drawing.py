"""Pictures of what a classifier of images sees and mistakes, drawn by Pillow: importing matplotlib would take longer, and more
memory, than all else at the end of a run. Each is (height, width, 3), uint8."""

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SIDE = 100  # pixels of an image in the gallery
PADDING = 6
WIDEST = 800  # pixels of a confusion matrix of many classes
NUMBERED = 20  # classes up to which its cells show their numbers
LINE = 16  # pixels of a line of text


@functools.cache
def _font() -> Any:
    """Matplotlib's, which has more letters than Pillow's own; looked up, not imported."""
    library = find_spec("matplotlib")
    assert library is not None
    assert library.origin is not None
    return ImageFont.truetype(Path(library.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf", 12)


def gallery(images: Tensor, targets: Tensor, predictions: Tensor, names: Sequence[str]) -> numpy.ndarray:
    """Images (n, channels, height, width), bytes or from 0 to 1, each under its class; where it is taken for another, in red."""
    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * (SIDE + PADDING), rows * (SIDE + PADDING + LINE)), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (image, target, prediction) in enumerate(zip(images.cpu(), targets.tolist(), predictions.tolist(), strict=True)):
        left, top = place % columns * (SIDE + PADDING), place // columns * (SIDE + PADDING + LINE)
        title = str(names[target]) if target == prediction else f"{names[target]} as {names[prediction]}"
        color = "black" if target == prediction else "red"
        draw.text((left + (SIDE + PADDING) // 2, top + LINE // 2), title, color, _font(), anchor="mm")
        sheet.paste(_pixels(image).resize((SIDE, SIDE), Image.Resampling.BOX), (left + PADDING // 2, top + LINE))
    return numpy.asarray(sheet)


def _pixels(image: Tensor) -> Image.Image:
    """Of an image without three channels, the first in grey."""
    shown = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    if shown.dtype != torch.uint8:
        shown = (shown.float().clamp(0, 1) * 255).byte()
    return Image.fromarray(shown.permute(1, 2, 0).numpy().copy())


def confusion(counts: Tensor, names: Sequence[str]) -> numpy.ndarray:
    """Counts (classes, classes), rows the true classes, as a table of ever darker cells."""
    counts, size = counts.cpu(), len(names)
    cell = max(1, min(40, WIDEST // size))
    labels = _labels(names, cell)
    margin, side = labels.width, size * cell
    sheet = Image.new("RGB", (margin + side + PADDING, PADDING + side + margin), "white")
    sheet.paste(labels, (0, PADDING))
    sheet.paste(labels.rotate(90, expand=True), (margin, PADDING + side))
    shares = (counts / counts.max().clamp(min=1)).numpy()[..., None]
    cells = numpy.uint8(255 - shares * (255 - numpy.array([8, 48, 107])))  # white to dark blue
    sheet.paste(Image.fromarray(cells).resize((side, side), Image.Resampling.NEAREST), (margin, PADDING))
    draw = ImageDraw.Draw(sheet)
    draw.rectangle((margin, PADDING, margin + side - 1, PADDING + side - 1), outline="black")
    draw.multiline_text(
        (margin // 2, PADDING + side + margin // 2), "row: true\ncolumn:\npredicted", "black", _font(), anchor="mm"
    )
    for row, column in numpy.ndindex(size, size) if size <= NUMBERED else ():
        middle = (margin + column * cell + cell // 2, PADDING + row * cell + cell // 2)
        color = "white" if shares[row, column] > 0.5 else "black"
        draw.text(middle, str(int(counts[row, column])), color, _font(), anchor="mm")
    return numpy.asarray(sheet)


def _labels(names: Sequence[str], cell: int) -> Image.Image:
    """One under another, to the right; none where a row is too low for them."""
    width = int(max(70, *(_font().getlength(name) for name in names))) + 2 * PADDING
    column = Image.new("RGB", (width, len(names) * cell), "white")
    draw = ImageDraw.Draw(column)
    for row, name in enumerate(names) if cell >= LINE else ():
        draw.text((width - PADDING, row * cell + cell // 2), name, "black", _font(), anchor="rm")
    return column
