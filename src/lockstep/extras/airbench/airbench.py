"""The net of airbench94, made to reach 94% on CIFAR-10 in seconds: Jordan 2024, arXiv:2404.00498."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import config_error
from lockstep.nets.input_shape import image_shape

_EPSILON = 5e-4  # added to the variances


class Whitening(nn.Conv2d):
    """A convolution whose outputs are uncorrelated and of variance one, and their negatives; with a bias that is trained.

    Its filters are the eigenvectors of the covariance of the training images' patches, divided by the square roots of their
    eigenvalues. They are frozen, saved with the model, and random until `fit` is called.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(channels, 2 * channels * kernel_size**2, kernel_size)
        self.weight.requires_grad_(False)
        self.is_fitted = False
        self.register_load_state_dict_post_hook(Whitening._loaded)

    def _loaded(self, *_: Any) -> None:
        self.is_fitted = True

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Fits it to images (n, channels, height, width) with means near zero, in float64. What was fitted or loaded stays."""
        if self.is_fitted:
            return
        products, count = torch.zeros(self.out_channels // 2, self.out_channels // 2, dtype=torch.float64), 0
        for some in images.split(256):
            patches = functional.unfold(some.double(), self.kernel_size)  # (n, channels * height * width, places)
            products += torch.einsum("nip,njp->ij", patches, patches)
            count += len(patches) * patches.shape[2]
        variances, vectors = torch.linalg.eigh(products / count)
        vectors *= (vectors * torch.arange(1, len(vectors) + 1).sqrt()[:, None]).sum(dim=0).sign()  # LAPACK's are of either sign
        filters = (vectors / (variances + _EPSILON).sqrt()).T
        self.weight.copy_(torch.cat([filters, -filters]).view(self.weight.shape))
        self.is_fitted = True


class Airbench(nn.Module):
    """Whitening, three blocks of two convolutions, the largest value of each channel, a linear map without bias. What its
    arguments mean stands in conf/model/airbench.yaml."""

    fitted_on = 5000  # training images, before training: see lockstep.models.Task.setup

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: int = 64,
        kernel_size: int = 2,
        batchnorm_momentum: float = 0.4,
        scaling_factor: float = 1 / 9,
    ) -> None:
        super().__init__()
        channels, height, breadth = image_shape("lockstep.extras.airbench.airbench.Airbench", input_shape)
        least = kernel_size + 7  # each block halves the size
        if min(height, breadth) < least:
            needs = f"takes images of at least {least} pixels, and the data has {height}x{breadth}; accepted is model=cnn"
            raise config_error("model.net._target_", "lockstep.extras.airbench.airbench.Airbench", needs)
        self.whiten = Whitening(channels, kernel_size)
        widths = [self.whiten.out_channels, width, 4 * width, 4 * width]
        self.blocks = nn.Sequential(*(_block(*ends, batchnorm_momentum) for ends in pairwise(widths)))
        self.head = nn.Linear(4 * width, num_outputs, bias=False)
        self.scaling_factor = scaling_factor

    def fit(self, images: Tensor) -> None:
        self.whiten.fit(images)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, num_outputs)."""
        features = self.blocks(functional.gelu(self.whiten(x)))
        return self.head(features.amax(dim=(2, 3))) * self.scaling_factor


def _block(inputs: int, outputs: int, momentum: float) -> nn.Sequential:
    first, second = _convolution(inputs, outputs), _convolution(outputs, outputs)
    norms = [_norm(outputs, momentum) for _ in range(2)]
    return nn.Sequential(first, nn.MaxPool2d(2), norms[0], nn.GELU(), second, norms[1], nn.GELU())


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Returns a convolution whose first outputs, as many as there are inputs, are at first these."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(convolution.weight[:inputs])
    return convolution


def _norm(channels: int, momentum: float) -> nn.BatchNorm2d:
    """Returns a BatchNorm that trains its bias alone."""
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=momentum)
    norm.weight.requires_grad_(False)
    return norm
