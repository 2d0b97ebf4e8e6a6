"""Augmentation of whole batches, with a draw per sample."""

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.counter_rng import random_bits


class CropFlip:
    """Random crop after zero padding, and random horizontal flip.

    The draws of a sample depend on (seed, epoch, sample id) alone: not on its batch, its rank, or what came before.

    Args:
        crop: pixels of padding on each side; the crop has the size of the image. 0 turns it off.
        flip: mirror each image with probability one half.
    """

    def __init__(self, crop: int = 0, flip: bool = False, seed: int = 0) -> None:
        self.crop, self.flip, self.seed = crop, flip, seed

    def __call__(self, images: Tensor, ids: Tensor, epoch: int) -> Tensor:
        """Images (n, channels, height, width) to the same shape and type; ids (n,)."""
        n, channels, height, width = images.shape
        rows = torch.arange(height).expand(n, -1)
        columns = torch.arange(width).expand(n, -1)
        if self.flip:
            mirrored = random_bits(self.seed, epoch, ids, 0) % 2 == 1
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        if self.crop:
            span = 2 * self.crop + 1
            rows = rows + (random_bits(self.seed, epoch, ids, 1) % span)[:, None]
            columns = columns + (random_bits(self.seed, epoch, ids, 2) % span)[:, None]
            images = functional.pad(images, [self.crop] * 4)
        return images[
            torch.arange(n)[:, None, None, None],
            torch.arange(channels)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
