"""Plain nets: their shapes, and an empty batch."""

import pytest
import torch
from torch import Tensor, nn

from lockstep.errors import ConfigError
from lockstep.nets import CNN, MLP


@pytest.mark.parametrize("shape", [(10,), (1, 8, 8), (3, 5, 7)])
@pytest.mark.parametrize("hidden", [[], [16, 4]])
@pytest.mark.parametrize("n", [0, 5])
def test_mlp_gives_an_output_vector_a_sample(n: int, hidden: list[int], shape: tuple[int, ...]) -> None:
    assert MLP(shape, 4, hidden, dropout=0.5)(torch.zeros(n, *shape)).shape == (n, 4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 5, 9)])
@pytest.mark.parametrize("n", [0, 5])
def test_cnn_gives_an_output_vector_a_sample(n: int, shape: tuple[int, int, int]) -> None:
    net = CNN(shape, 4, width=4)
    assert net.training
    assert net(torch.zeros(n, *shape)).shape == (n, 4)


def test_dropout_is_between_the_layers_and_off_in_evaluation() -> None:
    net = MLP((4,), 2, [100], dropout=0.5)
    x = torch.ones(1, 4)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    assert not isinstance(list(net.layers)[-1], nn.Dropout)


@pytest.mark.parametrize("net", [MLP((1, 8, 8), 3, [8], dropout=0.1), CNN((1, 8, 8), 3, width=4)], ids=["MLP", "CNN"])
def test_an_empty_batch_gives_every_parameter_a_gradient_of_zero(net: nn.Module) -> None:
    """DDP waits for every parameter's gradient on every rank, also on one without a sample in a tail."""
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    losses: Tensor = nn.functional.cross_entropy(
        net(torch.zeros(0, 1, 8, 8)), torch.zeros(0, dtype=torch.int64), reduction="none"
    )
    (losses.sum() * 2.0).backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()
    for name, buffer in net.named_buffers():
        assert name.endswith("num_batches_tracked") or torch.equal(buffer, before[name])


def test_data_that_is_no_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.net._target_=lockstep.nets.CNN: takes images .* has shape \(10,\); use"):
        CNN((10,), 3)
