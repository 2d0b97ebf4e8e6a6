"""The pictures, drawn by Pillow in matplotlib's font and colours: matplotlib takes ten times as long to lay out so much text."""

import functools
from collections.abc import Iterator, Sequence

import matplotlib
import numpy
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

COLUMNS = 8
SIDE, GAP = 84, 28  # pixels: the width of an image of the gallery, and what is around it, its class above it
NUMBERED = 20  # classes up to which the cells of a confusion matrix show their numbers
CELL, WIDEST = 32, 1000  # pixels: a cell, and at most a row of them
LINE, PADDING = 14, 6  # pixels: a line of text, and what is beside it


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", 12)  # Pillow 10.1 takes no Path


def gallery(images: Tensor, targets: Tensor, predictions: Tensor, names: Sequence[str]) -> Image.Image:
    """Draws images (n, channels, height, width), bytes or from 0 to 1, each under its class; a mistaken one in red."""
    size = SIDE, max(1, SIDE * images.shape[2] // images.shape[3])
    width, height = size[0] + GAP, size[1] + GAP
    columns = min(COLUMNS, len(images))
    picture = Image.new("RGB", (columns * width, -(-len(images) // columns) * height), "white")
    draw = ImageDraw.Draw(picture)
    for number, (image, target, prediction) in enumerate(
        zip(_shown(images), targets.tolist(), predictions.tolist(), strict=True)
    ):
        left, top = number % columns * width, number // columns * height
        picture.paste(image.resize(size, Image.Resampling.BOX), (left + GAP // 2, top + GAP))
        is_right = target == prediction
        title = str(names[target]) if is_right else f"{names[target]} as {names[prediction]}"
        draw.text((left + width / 2, top + GAP / 2), title, "black" if is_right else "red", _font(), anchor="mm")
    return picture


def _shown(images: Tensor) -> Iterator[Image.Image]:
    """Yields each image; of one without three channels the first in grey."""
    channels = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    pixels = channels.float().clamp(0, 1).mul(255).round().byte() if channels.is_floating_point() else channels
    yield from map(Image.fromarray, pixels.permute(0, 2, 3, 1).contiguous().cpu().numpy())


def confusion(counts: Tensor, names: Sequence[str]) -> Image.Image:
    """Draws counts (classes, classes), rows the true classes, as a table of ever darker cells. Of many classes some are named."""
    size = len(names)
    cell = max(1, min(CELL, WIDEST // size))
    side, margin = cell * size, LINE + 3 * PADDING + round(max(map(_font().getlength, names)))
    shares = (counts / counts.max().clamp(min=1)).cpu().numpy()
    colors = Image.fromarray(matplotlib.colormaps["Blues"](shares, bytes=True)).convert("RGB")
    picture = Image.new("RGB", (margin + side + PADDING, PADDING + side + margin), "white")
    picture.paste(colors.resize((side, side), Image.Resampling.NEAREST), (margin, PADDING))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((margin - 1, PADDING - 1, margin + side, PADDING + side), outline="black")
    for number in range(0, size, -(-LINE // cell)):
        middle = (number + 0.5) * cell
        draw.text((margin - PADDING, PADDING + middle), names[number], "black", _font(), anchor="rm")
        _write_upward(picture, names[number], margin + middle, 2 * PADDING + side)
    draw.text((margin + side / 2, picture.height - PADDING), "predicted", "black", _font(), anchor="mb")
    _write_upward(picture, "true", PADDING + LINE / 2, PADDING + (side - _font().getlength("true")) / 2)
    for row, column in numpy.argwhere(shares).tolist() if size <= NUMBERED else ():
        place = margin + (column + 0.5) * cell, PADDING + (row + 0.5) * cell
        color = "white" if shares[row, column] > 0.5 else "black"
        draw.text(place, str(int(counts[row, column])), color, _font(), anchor="mm")
    return picture


def _write_upward(picture: Image.Image, text: str, middle: float, top: float) -> None:
    """Writes a line that is read from below and ends at `top`; its middle is `middle` pixels from the left."""
    line = Image.new("RGB", (max(1, round(_font().getlength(text))), LINE), "white")
    ImageDraw.Draw(line).text((0, LINE / 2), text, "black", _font(), anchor="lm")
    picture.paste(line.transpose(Image.Transpose.ROTATE_90), (round(middle - LINE / 2), round(top)))
