"""Augmentation of whole batches, with separate random draws for each sample."""

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.errors import check_at_least
from lockstep.noise import random_bits


class CropFlip:
    """Random crop after padding with zeros, and horizontal flip.

    The draws of a sample depend only on (seed, epoch, sample id), not on its batch, its rank or earlier draws.

    Args:
        crop: pixels of padding on each side; the crop has the size of the image. 0 turns it off.
        flip: mirror each image with probability one half.
    """

    def __init__(self, crop: int = 0, flip: bool = False, seed: int = 0) -> None:
        check_at_least(0, crop=crop)
        self.crop, self.flip, self.seed = crop, flip, seed

    def __call__(self, images: Tensor, ids: Tensor, epoch: int) -> Tensor:
        """Augment images (n, channels, height, width), keeping shape and type; ids are (n,)."""
        height, width = images.shape[2:]
        top, left = (random_bits(self.seed, epoch, ids, stream) % (2 * self.crop + 1) for stream in (1, 2))
        windows = functional.pad(images, [self.crop] * 4).unfold(2, height, 1).unfold(3, width, 1)
        crops = windows[torch.arange(len(images)), :, top, left]
        if not self.flip:
            return crops
        is_mirrored = random_bits(self.seed, epoch, ids, 0) % 2 == 1
        return torch.where(is_mirrored[:, None, None, None], crops.flip(-1), crops)
