"""Augmentation: a draw per sample, whatever the batch around it."""

import pytest
import torch
from synthetic import Images
from torch import Tensor
from torch.nn import functional

from lockstep.counter_rng import random_bits
from lockstep.datamodules.augment import CropFlip, reflected
from lockstep.errors import ConfigError


@pytest.fixture
def images() -> Tensor:
    """64 images of 3x5x6, no two pixels alike and none zero."""
    return 1.0 + torch.arange(64 * 3 * 5 * 6).view(64, 3, 5, 6)


IDS = torch.arange(64) + 100


def test_a_sample_looks_the_same_in_any_batch(images: Tensor) -> None:
    augment = CropFlip(crop=2, flip=True, seed=1)
    whole = augment(images, IDS, epoch=3)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(images[order], IDS[order], 3), whole[order])
    assert torch.equal(torch.cat([augment(images[i : i + 5], IDS[i : i + 5], 3) for i in range(0, 64, 5)]), whole)
    assert torch.equal(CropFlip(crop=2, flip=True, seed=1)(images, IDS, 3), whole)  # nor does it remember anything


def test_another_epoch_or_seed_gives_other_images(images: Tensor) -> None:
    def differing(a: Tensor, b: Tensor) -> int:
        return int((a != b).flatten(1).any(dim=1).sum())

    augment = CropFlip(crop=2, flip=True, seed=1)
    base = augment(images, IDS, epoch=0)
    # 5 * 5 * 2 = 50 equally likely outcomes: of 64 images 1.3 are expected to look as before
    assert differing(augment(images, IDS, epoch=1), base) >= 56
    assert differing(CropFlip(crop=2, flip=True, seed=2)(images, IDS, epoch=0), base) >= 56


def test_a_flip_mirrors_or_does_nothing(images: Tensor) -> None:
    flipped = CropFlip(flip=True)(images, IDS, epoch=0)
    mirrored = [torch.equal(flipped[i], images[i].flip(-1)) for i in range(64)]
    same = [torch.equal(flipped[i], images[i]) for i in range(64)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert any(mirrored)
    assert any(same)


def test_positions_beyond_an_edge_are_reflected_without_repeating_it() -> None:
    assert reflected(torch.arange(-3, 7), 4).tolist() == [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_crop_of_a_reflected_image_is_torch_s(dtype: torch.dtype) -> None:
    shown = torch.arange(64 * 3 * 5 * 6).view(64, 3, 5, 6).remainder(251).to(dtype)
    augmented = CropFlip(crop=4, padding="reflect", seed=4)(shown, IDS, epoch=7)
    padded = functional.pad(shown.double(), [4] * 4, mode="reflect").to(dtype)
    tops, lefts = random_bits(4, 7, IDS, 1) % 9, random_bits(4, 7, IDS, 2) % 9
    for i in range(64):
        assert torch.equal(augmented[i], padded[i, :, tops[i] : tops[i] + 5, lefts[i] : lefts[i] + 6])


def test_a_reflection_further_than_the_image_reaches_is_refused() -> None:
    augment = {"crop": 4, "padding": "reflect"}
    data = Images((3, 4, 5), augment=augment)
    with pytest.raises(ConfigError, match=r"^datamodule.augment.crop=4: an image of \(3, 4, 5\) can't be .*; use less$"):
        data.setup("fit")


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_is_cut_from_the_padded_image(flip: bool, images: Tensor) -> None:
    crop, height, width = 2, 5, 6
    augmented = CropFlip(crop=crop, flip=flip, seed=4)(images, IDS, epoch=7)
    padded = functional.pad(images, [crop] * 4)
    mirror = random_bits(4, 7, IDS, 0) % 2 == 1
    tops, lefts = random_bits(4, 7, IDS, 1) % 5, random_bits(4, 7, IDS, 2) % 5  # 0 to 2 * crop
    for i in range(64):
        top, left = int(tops[i]), int(lefts[i])
        cut = padded[i, :, top : top + height, left : left + width]
        assert torch.equal(augmented[i], cut.flip(-1) if flip and mirror[i] else cut)


def test_the_images_given_stay_as_they_are(images: Tensor) -> None:
    before = images.clone()
    CropFlip(crop=2, flip=True)(images, IDS, epoch=0)
    assert torch.equal(images, before)
