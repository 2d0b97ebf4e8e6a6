"""Plain nets: their shapes, their size, and what they import."""

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep.nets
from lockstep.errors import ConfigError
from lockstep.nets import CNN, MLP

NETS = Path(lockstep.nets.__file__).parent


@pytest.mark.parametrize(("n", "hidden", "shape"), [(0, [16, 4], (10,)), (1, [], (1, 8, 8)), (5, [16], (3, 5, 7))])
def test_mlp_gives_an_output_vector_a_sample(n: int, hidden: list[int], shape: tuple[int, ...]) -> None:
    assert MLP(shape, 4, hidden, dropout=0.5)(torch.zeros(n, *shape)).shape == (n, 4)


@pytest.mark.parametrize(("n", "shape"), [(0, (1, 8, 8)), (2, (3, 32, 32)), (5, (2, 5, 9))])
def test_cnn_gives_an_output_vector_a_sample(n: int, shape: tuple[int, int, int]) -> None:
    net = CNN(shape, 4, width=4)
    assert net.training
    assert net(torch.zeros(n, *shape)).shape == (n, 4)


@pytest.mark.parametrize(("hidden", "count"), [([256], 203_530), ([], 7_850)])
def test_the_mlp_of_the_guides_has_their_number_of_parameters(hidden: list[int], count: int) -> None:
    """784 * 256 + 256 + 256 * 10 + 10, and 784 * 10 + 10."""
    net = MLP((1, 28, 28), 10, hidden)
    assert sum(parameter.numel() for parameter in net.parameters()) == count


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


@pytest.mark.parametrize("source", sorted(NETS.glob("*.py")), ids=lambda path: path.name)
def test_nets_know_nothing_of_lightning_or_of_distribution(source: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    unwanted = ("lightning", "pytorch_lightning", "torch.distributed", "hydra", "omegaconf")
    assert imported or source.name == "__init__.py"
    assert not [name for name in imported if name.startswith(unwanted)]
