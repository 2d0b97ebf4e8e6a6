"""Vision Transformers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.errors import check_at_least, config_error
from lockstep.nets.cnn import image_shape


class ViT(nn.Module):
    """A Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929) for small images.

    It has torch's encoder layers, with the norms first and without dropout. Positions are trained from sines and cosines, and
    the head takes the mean over the patches (Beyer et al. 2022, arXiv:2205.01580).

    Args:
        patch: pixels along a side of a patch; it divides the images' height and width.
    """

    stage_ends = (("patches", "positions"), ("head",))  # what the first and the last stage of a pipeline have beside layers

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: int = 128,
        depth: int = 6,
        heads: int = 4,
        mlp_width: int | None = None,
        patch: int = 4,
    ) -> None:
        super().__init__()
        check_at_least(1, width=width, depth=depth, heads=heads, mlp_width=mlp_width, patch=patch)
        channels, height, image_width = image_shape("lockstep.nets.vit.ViT", input_shape)
        if height % patch or image_width % patch:
            raise config_error("model.net.patch", patch, f"use what divides the images' {height} and {image_width} pixels")
        self.patches = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(_waves(height // patch, image_width // patch, width))
        self.layers = nn.Sequential(*(_layer(width, heads, mlp_width or 4 * width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, height, width) to (n, num_outputs)."""
        return self._outputs(self.layers(self._tokens(x)))

    def stage(self, images: Tensor, x: Tensor | None, layers: range) -> Tensor:
        """Compute some of the layers from the output `x` of those before, None for the first; after the last, the outputs."""
        tokens: Tensor = self.layers[layers.start : layers.stop](self._tokens(images) if x is None else x)
        return self._outputs(tokens) if layers.stop == len(self.layers) else tokens

    def _tokens(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).transpose(1, 2) + self.positions

    def _outputs(self, tokens: Tensor) -> Tensor:
        return self.head(tokens.mean(dim=1))


def _layer(width: int, heads: int, mlp_width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, mlp_width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


def _waves(rows: int, columns: int, width: int) -> Tensor:
    """Return sines and cosines of the column and of the row, with wavelengths up to 10,000: (rows * columns, width)."""
    frequencies = 10_000 ** -torch.linspace(0, 1, width // 4)
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.flatten()[:, None] * frequencies for place in (column, row)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
