"""What switches a cause off: whatever it is, both sides are the same without it."""

import random
from typing import Any

import numpy
import pytest
import torch
from squares import Squares
from torch import Tensor
from torch.nn import functional
from torchvision.ops import StochasticDepth

from lockstep.datamodules.batches import Batch
from lockstep.extras.parity.interventions import time_first
from lockstep.extras.parity_causes.draws import constant_draws
from lockstep.extras.parity_causes.switches import switched_off, without_dropout


def test_a_batch_in_parts_has_the_mean_of_their_losses() -> None:
    """Ranks 0 and 1 of two accumulated batches: (0, 2), (1, 3), (4, 6), (5, 7); each has squares of 1 about its mean."""
    model = Squares()
    with switched_off({"parts": [4, 2, 2]}, model):
        output = model.training_step((torch.arange(8.0),), 0)
    assert [part[0].tolist() for part in model.seen] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert output["loss"] == 1.0


def test_a_part_of_a_tail_counts_with_its_samples() -> None:
    """Of two processes one has (0, 4), the other (2): squares of 4 about the mean, and none."""
    model = Squares()
    with switched_off({"parts": [6, 1, 2]}, model):
        output = model.training_step((torch.tensor([0.0, 2.0, 4.0]),), 0)
    assert output["loss"] == pytest.approx(4 * 2 / 3)


def test_a_loss_weight_is_that_of_the_part() -> None:
    model = Squares()
    with switched_off({"parts": [8, 1, 2]}, model):
        model.training_step(Batch(torch.arange(8.0), torch.arange(8), torch.arange(8), 0.125), 0)
    assert [part.loss_weight for part in model.seen] == [0.25, 0.25]


def test_buffers_are_left_as_they_are() -> None:
    model = Squares()
    with switched_off({"still": True}, model):
        model.training_step((torch.arange(8.0),), 0)
    assert model.count == 0


def test_buffers_that_are_put_in_the_place_of_others_are_left_as_they_are_in_the_module_s_own_hooks_too() -> None:
    model = Squares()
    model.on_train_batch_end = lambda *_: setattr(model, "count", torch.ones(3))
    with switched_off({"still": True}, model):
        model.on_train_batch_end(None, None, 0)
    assert model.count.shape == ()


def test_evaluation_is_in_parts_too() -> None:
    model = Squares()
    model.validation_step = model.training_step  # pyright: ignore[reportAttributeAccessIssue]
    with switched_off({"parts": [4, 1, 2]}, model):
        assert isinstance(model.validation_step((torch.arange(8.0),), 0), dict)
    assert [part[0].tolist() for part in model.seen] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_layers_that_take_time_first_take_samples_first() -> None:
    model = Squares()
    model.layers = torch.nn.ModuleList([torch.nn.GRU(2, 2), torch.nn.LSTM(2, 2, batch_first=True)])
    assert time_first(model) == [model.layers[0]]
    with switched_off({"batch_first": True}, model):
        assert time_first(model) == []


def test_a_gradient_through_rrelu_is_its_mean_slope() -> None:
    x = torch.full((4,), -1.0, requires_grad=True)
    with constant_draws(("torch",)):
        functional.rrelu(x, 0.25, 0.75, training=True).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5] * 4


def test_draws_become_one_number_however_many_there_are() -> None:
    def drawn(n: int) -> list[Any]:
        depth = StochasticDepth(0.3, "row")(torch.ones(n, 2))
        noise = [torch.rand(n), torch.randn(n, requires_grad=True).detach(), torch.bernoulli(torch.full((n,), 0.2))]
        noise += [functional.rrelu(torch.full((n,), -1.0), training=True), functional.gumbel_softmax(torch.ones(n, 3))[:, 0]]
        return [*noise, depth[:, 0], numpy.random.rand(n), numpy.random.beta(1, 2, n), [random.gauss(0, 1) for _ in range(n)]]

    with constant_draws(("torch", "numpy", "Python")):
        few, many = drawn(2), drawn(40)
    for a, b in zip(few, many, strict=True):
        assert set(map(float, a)) == set(map(float, b))
        assert len(set(map(float, a))) == 1
    assert len(set(torch.rand(5).tolist())) == 5
    assert len(set(numpy.random.rand(5))) == 5


def test_generators_of_one_s_own_are_left_alone() -> None:
    with constant_draws(("torch",)):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
        noise = torch.rand(8, generator=torch.Generator().manual_seed(0))
    assert len(set(noise.tolist())) == 8
    assert torch.equal(order, torch.randperm(8, generator=torch.Generator().manual_seed(0)))


def test_without_dropout_nothing_is_dropped() -> None:
    x = torch.ones(100)
    layers = torch.nn.ModuleDict(
        {
            "attention": torch.nn.TransformerEncoderLayer(100, 2, dim_feedforward=8, dropout=0.5, batch_first=True),
            "recurrence": torch.nn.LSTM(100, 8, num_layers=2, dropout=0.5, batch_first=True),
        }
    )

    def outputs() -> list[Tensor]:
        batch = x.expand(2, 3, 100)
        attended = functional.scaled_dot_product_attention(batch, batch, batch, None, 0.5)
        return [layers["attention"](batch), layers["recurrence"](batch)[0], attended]

    assert not all(torch.equal(a, b) for a, b in zip(outputs(), outputs(), strict=True))
    with without_dropout(layers):
        assert torch.equal(functional.dropout(x, 0.5), x)
        assert torch.equal(torch.nn.AlphaDropout(0.5)(x), x)
        for a, b in zip(outputs(), outputs(), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(functional.dropout(x, 0.5), x)
