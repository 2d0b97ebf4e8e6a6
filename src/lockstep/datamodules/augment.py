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
        n, channels, height, width = images.shape
        if not n:
            return images
        padded = functional.pad(images, [self.crop] * 4)
        tall, wide = padded.shape[2:]
        of_sample, of_channel, of_row = (torch.arange(count) for count in (n, channels, height))
        top, left = (random_bits(self.seed, epoch, ids, stream) % (2 * self.crop + 1) for stream in (1, 2))
        if self.flip:  # a mirrored crop is a crop of the mirrored image
            mirrored = random_bits(self.seed, epoch, ids, 0) % 2 == 1
            padded = torch.cat([padded, padded.flip(-1)])
            of_sample, left = of_sample + n * mirrored, torch.where(mirrored, 2 * self.crop - left, left)
        # Copying whole rows is many times faster than pixels: each row of a crop is one of all runs of `width` pixels.
        runs = padded.flatten().as_strided((padded.numel() - width + 1, width), (1, 1))
        row = (of_sample[:, None] * channels + of_channel)[:, :, None] * tall + top[:, None, None] + of_row
        return runs.index_select(0, (row * wide + left[:, None, None]).flatten()).view(images.shape)
