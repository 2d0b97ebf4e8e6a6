"""Views of an image at evaluation, over which a classifier's outputs are averaged."""

from collections.abc import Iterator

from torch import Tensor

from lockstep.datamodules.augment import reflected_cut


def views(images: Tensor, tta: str) -> Iterator[tuple[float, Tensor]]:
    """Weights that add up to one, and images (n, channels, height, width) of the shape and type of those given.

    `mirror`: as they are, and mirrored. `mirror_translate`: these two count one half; moved by a pixel, up and left or down and
    right, reflected at the edges, they count a quarter each. Jordan 2024, arXiv:2404.00498.
    """
    moves = {"mirror": {0: 1.0}, "mirror_translate": {0: 0.5, -1: 0.25, 1: 0.25}}[tta]
    for by, weight in moves.items():
        view = reflected_cut(images, -by, -by) if by else images
        yield from ((weight / 2, view), (weight / 2, view.flip(-1)))
