"""The whitening layer and the net behind it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities import requires
from in_process import prepared
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import ConfigError
from lockstep.extras.airbench.airbench import Airbench, Whitening


@pytest.fixture
def images() -> Tensor:
    """Neighbouring pixels and channels that go together, with a mean of zero; float64."""
    noise = torch.randn(300, 2, 7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smooth = functional.avg_pool2d(noise, 2, stride=1) + noise[:, :1, 1:, 1:]
    return smooth - smooth.mean()


def test_outputs_are_uncorrelated_of_variance_one_and_their_negatives(images: Tensor) -> None:
    layer = Whitening(2, kernel_size=2).double()
    layer.fit(images)
    nn.init.zeros_(layer.bias)
    result = layer(images).movedim(1, 0).flatten(1)
    assert torch.equal(result[8:], -result[:8])
    covariance = result[:8] @ result[:8].T / result.shape[1]
    torch.testing.assert_close(
        covariance.detach(), torch.eye(8, dtype=torch.float64), rtol=0, atol=0.02
    )  # less by 5e-4 / variance
    assert (covariance - covariance.diag().diag()).abs().max() < 1e-12


def test_the_fit_does_not_depend_on_the_layer_s_type_and_is_frozen(images: Tensor) -> None:
    layers = [Whitening(2, kernel_size=2), Whitening(2, kernel_size=2).double()]
    for layer in layers:
        layer.fit(images)
    assert torch.equal(layers[0].weight, layers[1].weight.float())
    assert [name for name, parameter in layers[0].named_parameters() if parameter.requires_grad] == ["bias"]


def test_what_is_fitted_or_loaded_stays(images: Tensor) -> None:
    layer, other = Whitening(2, kernel_size=2), Whitening(2, kernel_size=2)
    layer.fit(images)
    other.load_state_dict(layer.state_dict())
    before = layer.weight.clone()
    for one in (layer, other):
        one.fit(images.flip(1) + 1)
        assert torch.equal(one.weight, before)


def test_the_net_of_the_paper_has_its_number_of_parameters() -> None:
    """24 filters of 3x2x2 and their biases; 3x3 filters; a weight, which is frozen, and a bias for each channel; a head."""
    net = Airbench((3, 32, 32), 10)
    filters = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 256 * 256 + 256 * 256 + 256 * 256)
    norms = 2 * (64 + 256 + 256)
    assert sum(p.numel() for p in net.parameters()) == 24 * 12 + 24 + filters + 2 * norms + 2560
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == 24 + filters + norms + 2560


@pytest.mark.parametrize("shape", [(3, 9, 11), (1, 28, 28)])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_the_net_gives_an_output_vector_a_sample(n: int, shape: tuple[int, int, int]) -> None:
    net = Airbench(shape, 5, width=3)
    net.fit(torch.randn(6, *shape))
    assert net.eval()(torch.zeros(n, *shape)).shape == (n, 5)


def test_a_block_begins_by_passing_its_inputs_on() -> None:
    convolution: Any = Airbench((1, 9, 9), 2, width=16).blocks[0][0]  # 8 channels to 16
    x = torch.randn(2, 8, 5, 5)
    torch.testing.assert_close(convolution(x)[:, :8], x)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^model.net._target_=lockstep.extras.airbench.airbench.Airbench: takes images of at least 9 pixels, .*8x8",
    ):
        Airbench((1, 8, 8), 10)


@requires("synthetic")
def test_a_run_fits_it_to_the_standardised_training_images_and_saves_it(tmp_path: Path) -> None:
    overrides = ["model=airbench", "model.net.width=4", "datamodule=synthetic_images", "datamodule.shape=[1,9,9]"]
    overrides += ["datamodule.length=400", "datamodule.standardize=true", "trainer.max_steps=1", "trainer.limit_val_batches=1"]
    datamodule, model, trainer = prepared(tmp_path, *overrides)
    trainer.fit(model, datamodule)
    expected = Whitening(1, kernel_size=2)
    expected.fit(model.cpu().preprocess(datamodule.splits.train.inputs))
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(saved["net.whiten.weight"], expected.weight)
    assert not torch.equal(saved["net.whiten.bias"], torch.zeros(8))
