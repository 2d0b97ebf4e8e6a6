"""Pictures by Pillow, looked at pixel by pixel."""

import numpy
import pytest
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


def test_only_what_is_mistaken_is_titled_in_red() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    sheet = numpy.asarray(gallery(images, torch.tensor([0, 1]), torch.tensor([0, 0]), ["cat", "dog"])).astype(int)
    right, wrong = sheet[:GAP, :WIDTH], sheet[:GAP, WIDTH:]
    assert right.min() < 128
    assert (right[..., 0] == right[..., 1]).all()  # greys
    assert (wrong[..., 0] - wrong[..., 1]).max() == 255
    assert numpy.ptp(numpy.argwhere(wrong[..., 1] < 128)[:, 1]) > numpy.ptp(
        numpy.argwhere(right[..., 1] < 128)[:, 1]
    )  # "dog as cat"


@pytest.mark.parametrize("shape", [(1, 1, 3, 9), (1, 2, 1, 1), (1, 5, 300, 200)])
def test_images_of_any_shape_are_drawn(shape: tuple[int, ...]) -> None:
    sheet = gallery(torch.zeros(shape), torch.tensor([0]), torch.tensor([0]), ["a"])
    assert sheet.size == (WIDTH, SIDE * shape[2] // shape[3] + GAP)


def test_images_from_zero_to_one_keep_their_colors() -> None:
    image = torch.tensor([1.0, 0.0, 0.5]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert gallery(image, torch.tensor([0]), torch.tensor([0]), ["a"]).getpixel((WIDTH // 2, GAP + SIDE // 2)) == (255, 0, 128)


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


def test_cells_of_few_classes_show_their_numbers() -> None:
    names = [str(i) for i in range(NUMBERED)]
    ones = torch.eye(NUMBERED, dtype=torch.int64)
    few, same = (numpy.asarray(confusion(ones * count, names)).astype(int) for count in (1, 7))
    assert (cells(few, NUMBERED) == cells(same, NUMBERED)).all()
    assert (few != same).any()  # by their numbers alone
    names += ["one more"]
    many = torch.eye(len(names), dtype=torch.int64)
    assert confusion(many, names) == confusion(many * 7, names)


def test_each_class_is_named_where_there_is_room() -> None:
    counts, names = torch.zeros(60, 60, dtype=torch.int64), ["cat"] * 60
    assert all(confusion(counts, [*names[:i], "dog", *names[i + 1 :]]) != confusion(counts, names) for i in (0, 31, 59))


def test_a_thousand_classes_fit_into_a_picture() -> None:
    assert max(confusion(torch.ones(1000, 1000, dtype=torch.int64), [f"class {i}" for i in range(1000)]).size) < 1200
