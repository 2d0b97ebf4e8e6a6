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


@pytest.mark.parametrize(("crop", "flip"), [(2, False), (2, True), (0, True)])
def test_a_crop_is_cut_from_the_padded_image_and_mirrored_by_the_sample_s_bits(crop: int, flip: bool, images: Tensor) -> None:
    height, width = 5, 6
    augmented = CropFlip(crop=crop, flip=flip, seed=4)(images, IDS, epoch=7)
    padded = functional.pad(images, [crop] * 4)
    mirror = random_bits(4, 7, IDS, 0) % 2 == 1
    tops, lefts = (random_bits(4, 7, IDS, stream) % (2 * crop + 1) for stream in (1, 2))
    for i in range(64):
        top, left = int(tops[i]), int(lefts[i])
        cut = padded[i, :, top : top + height, left : left + width]
        assert torch.equal(augmented[i], cut.flip(-1) if flip and mirror[i] else cut)
