"""What is done to a training: whatever it is, both sides are the same with it."""

from dataclasses import dataclass

import torch
from squares import Squares
from torch import Tensor

from lockstep.extras.parity.interventions import add_rounding, applied, count_tokens, index_batch, index_dropout
from lockstep.nets import Dropout


def test_a_permutation_keeps_samples_whole() -> None:
    model = Squares()
    with applied({"permuted": 1}, model):
        model.training_step({0: torch.arange(8.0), "name": "x", "targets": torch.arange(8) * 10}, 0)
    (seen,) = model.seen
    assert seen[0].tolist() != list(range(8))
    assert sorted(seen[0].tolist()) == list(range(8))
    assert torch.equal(seen["targets"], seen[0].long() * 10)


def test_samples_are_taken_out_of_a_batch_of_any_shape() -> None:
    @dataclass
    class Opaque:
        inputs: Tensor

    assert index_batch(Opaque(torch.arange(4)), torch.tensor([2, 0])).inputs.tolist() == [2, 0]
    assert index_batch((["a", "b"],), torch.tensor([])) == (["a", "b"],)


def test_dropout_drops_of_a_sample_what_it_did_in_the_whole_batch() -> None:
    model, dropout = Squares(), Dropout(0.5)
    model.dropout = dropout
    dropout.keys = torch.arange(6) * 10**15
    with index_dropout(model, torch.tensor([4, 1])):
        part = dropout(torch.ones(2, 8))
    assert torch.equal(part, dropout(torch.ones(6, 8))[[4, 1]])


def test_rounding_is_imitated_in_the_last_places_of_the_largest_value() -> None:
    weight = torch.nn.Parameter(torch.zeros(100, dtype=torch.float64))
    weight.grad = torch.linspace(0, 1, 100, dtype=torch.float64)
    add_rounding(torch.optim.SGD([weight]), number=1, step=0)
    noise = weight.grad - torch.linspace(0, 1, 100, dtype=torch.float64)
    assert 1e-15 < noise.abs().max() < 1e-13


def test_tokens_are_counted_where_some_are_ignored() -> None:
    batch = {"labels": torch.tensor([[1, 2], [3, -100]]), "mask": torch.ones(2, 2, dtype=torch.bool), "x": torch.ones(2)}
    assert count_tokens(batch) == {"batch.labels": (3, 1)}
