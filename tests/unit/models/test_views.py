"""Test-time augmentation, pixel by pixel."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.views import views


class Weighted(nn.Module):
    """A linear map in which every pixel counts differently."""

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.arange(x[0].numel(), dtype=x.dtype).view(x.shape[1:])
        return (x * weights).sum(dim=(1, 2, 3))[:, None] * torch.tensor([1.0, -1.0])


def classifier(tta: Any, shape: tuple[int, ...] = (2, 4, 5)) -> Classifier:
    sgd: Any = partial(torch.optim.SGD, lr=0.1)
    return Classifier(net=Weighted(), spec=DataSpec(shape, 2), optimizer=sgd, lr_scheduler=sgd, metrics=["loss"], tta=tta)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))


def test_views_are_the_image_mirrored_and_moved_by_a_pixel_each_way(images: Tensor) -> None:
    padded = functional.pad(images, [1] * 4, mode="reflect")
    moved = (images, padded[:, :, :4, :5], padded[:, :, 2:, 2:])  # as it is, down and right, up and left
    expected = [one for view in moved for one in (view, view.flip(-1))]
    result = list(views(images, "mirror_translate"))
    assert [weight for weight, _ in result] == [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    for view in expected:
        assert sum(torch.equal(view, shown) for _, shown in result) == 1
    assert [weight for weight, _ in views(images, "mirror")] == [0.5, 0.5]
    assert views(images.mul(255).byte(), "mirror_translate").__next__()[1].dtype == torch.uint8


@pytest.mark.parametrize("tta", ["none", "mirror", "mirror_translate"])
def test_outputs_are_the_weighted_mean_over_views_in_evaluation_alone(tta: Any, images: Tensor) -> None:
    model = classifier(tta)
    plain = Weighted()(images)
    assert torch.equal(model.train()(images), plain)
    mean = plain if tta == "none" else sum(weight * Weighted()(view) for weight, view in views(images, tta))
    torch.testing.assert_close(model.eval()(images), mean)
    assert torch.equal(model(images), plain) is (tta == "none")
    torch.testing.assert_close(model.predict(images), mean.softmax(dim=1))
    assert model(images[:0]).shape == (0, 2)


def test_data_that_is_no_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.tta=mirror: is for images; this data has shape \(5,\); accepted is none$"):
        classifier("mirror", (5,))
