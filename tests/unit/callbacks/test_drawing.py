"""Pictures by Pillow, looked at pixel by pixel."""

import torch

from lockstep.callbacks.drawing import LINE, NUMBERED, PADDING, SIDE, WIDEST, confusion, gallery


def test_each_image_of_the_gallery_is_in_its_place() -> None:
    images = torch.full((10, 1, 4, 4), 7, dtype=torch.uint8)
    images[9] = 200
    sheet = gallery(images, torch.zeros(10, dtype=torch.int64), torch.zeros(10, dtype=torch.int64), ["a"])
    assert sheet.shape == (2 * (SIDE + PADDING + LINE), 8 * (SIDE + PADDING), 3)
    top, left = SIDE + PADDING + 2 * LINE, SIDE + PADDING + PADDING // 2  # of the tenth, the second one of the second row
    assert (sheet[top : top + SIDE, left : left + SIDE] == 200).all()
    assert (sheet[LINE : LINE + SIDE, PADDING // 2 : PADDING // 2 + SIDE] == 7).all()


def test_images_from_zero_to_one_keep_their_colors() -> None:
    image = torch.tensor([1.0, 0.0, 0.5]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    sheet = gallery(image, torch.tensor([0]), torch.tensor([0]), ["a"])
    assert sheet[LINE + SIDE // 2, SIDE // 2].tolist() == [255, 0, 127]


def test_only_what_is_mistaken_is_titled_in_red() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    sheet = gallery(images, torch.tensor([0, 1]), torch.tensor([0, 0]), ["cat", "dog"]).astype(int)
    right, wrong = sheet[:LINE, : SIDE + PADDING], sheet[:LINE, SIDE + PADDING :]
    assert (right[..., 0] == right[..., 1]).all()  # greys
    assert (wrong[..., 0] - wrong[..., 1]).max() == 255


def test_the_darkest_cell_is_the_one_counted_most() -> None:
    size = NUMBERED + 1  # without numbers over the cells
    counts = torch.zeros(size, size, dtype=torch.int64)
    counts[2, 5] = 10
    counts[3, 3] = 5
    sheet = confusion(counts, [str(i) for i in range(size)])
    cell = WIDEST // size
    margin = sheet.shape[1] - size * cell - PADDING
    found = {
        (row, column): sheet[PADDING + row * cell + cell // 2, margin + column * cell + cell // 2].tolist()
        for row in range(size)
        for column in range(size)
    }
    assert found.pop((2, 5)) == [8, 48, 107]
    assert found.pop((3, 3)) == [131, 151, 181]
    assert set(map(tuple, found.values())) == {(255, 255, 255)}


def test_a_thousand_classes_fit_into_a_picture() -> None:
    sheet = confusion(torch.ones(1000, 1000, dtype=torch.int64), [f"class {i}" for i in range(1000)])
    assert sheet.shape[0] < 1200
