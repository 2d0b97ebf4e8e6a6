"""The figures of pictures, looked at through matplotlib."""

from typing import Any

import numpy
import torch

from lockstep.extras.pictures.drawing import LABELED, NUMBERED, confusion, gallery


def test_each_image_of_the_gallery_is_under_its_class_and_a_mistaken_one_is_in_red() -> None:
    images = torch.full((10, 1, 4, 4), 7, dtype=torch.uint8)
    images[9] = 200
    targets, predictions = torch.zeros(10, dtype=torch.int64), torch.zeros(10, dtype=torch.int64)
    predictions[9] = 1
    ax: Any = gallery(images, targets, predictions, ["cat", "dog"]).axes[0]
    assert [text.get_text() for text in ax.texts] == ["cat"] * 9 + ["cat as dog"]
    assert [text.get_color() for text in ax.texts] == ["black"] * 9 + ["red"]
    sheet = numpy.asarray(ax.images[0].get_array())
    assert sheet.shape == (12, 48, 3)  # two rows of eight, with two pixels above and around each
    assert (sheet[8:12, 7:11] == 200).all()  # the second one of the second row
    assert (sheet[2:6, 1:5] == 7).all()
    assert (sheet[8:12, 12:] == 255).all()


def test_images_from_zero_to_one_keep_their_colors() -> None:
    image = torch.tensor([1.0, 0.0, 0.5]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    ax: Any = gallery(image, torch.tensor([0]), torch.tensor([0]), ["a"]).axes[0]
    assert ax.images[0].get_array()[5, 5].tolist() == [1, 0, 0.5]


def test_the_cells_of_a_confusion_matrix_are_its_counts() -> None:
    counts = torch.zeros(NUMBERED, NUMBERED, dtype=torch.int64)
    counts[2, 5], counts[3, 3] = 10, 4
    ax: Any = confusion(counts, [f"class {i}" for i in range(NUMBERED)]).axes[0]
    assert (numpy.asarray(ax.images[0].get_array()) == counts.numpy()).all()
    numbers = {text.get_position(): (text.get_text(), text.get_color()) for text in ax.texts}
    assert numbers == {(5, 2): ("10", "white"), (3, 3): ("4", "black")}  # (column, row)
    assert [label.get_text() for label in ax.get_yticklabels()][2] == "class 2"


def test_a_thousand_classes_have_neither_numbers_nor_names() -> None:
    figure: Any = confusion(torch.ones(1000, 1000, dtype=torch.int64), [f"class {i}" for i in range(1000)])
    assert len(figure.axes[0].get_xticks()) <= LABELED
    assert not figure.axes[0].texts
    assert max(figure.get_size_inches()) <= 12
