"""Augmentation: a draw per sample, whatever the batch around it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lockstep.datamodules.augment import CropFlip
from lockstep.noise import random_bits


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


def test_every_offset_of_the_crop_occurs() -> None:
    """A single bright pixel in the middle of 5x5, moved by -2 to 2 each way: 25 places."""
    images = torch.zeros(2000, 1, 5, 5)
    images[:, :, 2, 2] = 1
    moved = CropFlip(crop=2)(images, torch.arange(2000), epoch=0)
    assert torch.equal(moved.sum(dim=(1, 2, 3)), torch.ones(2000))
    counts = moved.sum(dim=(0, 1))
    assert counts.min() > 40  # 80 expected in each place, of standard deviation 9
    assert counts.max() < 120
