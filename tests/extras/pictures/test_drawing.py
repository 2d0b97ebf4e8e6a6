"""Pictures by Pillow, looked at pixel by pixel."""

import numpy
import torch

from lockstep.extras.pictures.drawing import CELL, GAP, NUMBERED, PADDING, SIDE, WIDEST, confusion, gallery

WIDTH = SIDE + GAP


def test_each_image_of_the_gallery_is_in_its_place() -> None:
    images = torch.full((10, 1, 4, 4), 7, dtype=torch.uint8)
    images[9] = 200
    sheet = numpy.asarray(gallery(images, torch.zeros(10, dtype=torch.int64), torch.zeros(10, dtype=torch.int64), ["a"]))
    assert sheet.shape == (2 * WIDTH, 8 * WIDTH, 3)
    top, left = WIDTH + GAP, WIDTH + GAP // 2  # of the tenth, the second one of the second row
    assert (sheet[top : top + SIDE, left : left + SIDE] == 200).all()
    assert (sheet[GAP:WIDTH, GAP // 2 : GAP // 2 + SIDE] == 7).all()
    assert (sheet[WIDTH:, 2 * WIDTH :] == 255).all()


def cells(sheet: numpy.ndarray, size: int) -> numpy.ndarray:
    """The pixels near the corner of each cell (size, size, 3), where no number is."""
    cell = min(CELL, WIDEST // size)
    margin = sheet.shape[1] - size * cell - PADDING
    places = numpy.arange(size) * cell + 1
    return sheet[PADDING + places[:, None], margin + places[None, :]]


def test_the_darker_a_cell_the_more_was_counted() -> None:
    counts = torch.zeros(NUMBERED, NUMBERED, dtype=torch.int64)
    counts[2, 5], counts[3, 3] = 10, 4
    picture = confusion(counts, [f"class {i}" for i in range(NUMBERED)])
    light = cells(numpy.asarray(picture), NUMBERED).sum(axis=2)
    assert light[2, 5] < light[3, 3] < light[0, 0]
    assert (light == light[0, 0]).sum() == NUMBERED**2 - 2
    assert confusion(counts.flip(0), [f"class {i}" for i in range(NUMBERED)]) != picture
