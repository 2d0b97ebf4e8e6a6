"""How far two tensors lie apart, and what of it is tolerated."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lockstep.parity.causes import Evidence
from lockstep.parity.compare import Comparison
from lockstep.parity.interventions import permute, without_dropout
from lockstep.parity.observe import difference, differences, fingerprints
from lockstep.parity.sides import Difference, Findings, Sides, is_reference
from lockstep.parity.verdict import verdict


def test_a_difference_is_relative_to_the_largest_value_of_the_first() -> None:
    a = torch.tensor([1.0, -4.0])
    assert difference(a, a + torch.tensor([0.5, 0.0])) == 0.125
    assert difference(a, None) == 1.0
    assert difference(torch.zeros(2), None) == 0.0
    assert difference(None, a) == math.inf
    assert difference(a, torch.tensor([1.0])) == math.inf
    assert difference(a, a * math.nan) == math.inf
    assert difference(a * math.nan, a * math.nan) == 0.0
    assert difference(torch.zeros(0), torch.zeros(0)) == 0.0


def test_each_tensor_is_compared_and_one_that_is_missing_is_zero() -> None:
    ours = {"a": torch.ones(2), "b": torch.ones(2), "gone": torch.zeros(1)}
    theirs = {"a": torch.tensor([1.0, 1.25]), "b": torch.tensor([1.0, 0.5]), "new": torch.ones(1)}
    found = {"a": 0.25, "b": 0.5, "gone": 0.0, "new": math.inf}
    assert differences(3, "gradients", ours, theirs) == [Difference(3, "gradients", *item) for item in found.items()]


def test_a_fingerprint_tells_samples_apart_in_any_order() -> None:
    inputs = torch.randint(256, (5, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    prints = fingerprints((inputs, torch.arange(5), 1.0))
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(fingerprints((inputs[order], torch.arange(5)[order], 1.0)), prints[order])
    assert len(prints.unique()) == 5
    mirrored = inputs.flip(3)
    assert not torch.isclose(fingerprints((mirrored, torch.arange(5), 1.0)), prints).any()
    assert len(fingerprints((inputs[:0], torch.arange(0), 1.0))) == 0


def test_a_batch_that_can_not_be_permuted_is_an_error_and_not_the_end_of_the_data() -> None:
    @dataclass
    class Opaque:
        inputs: Tensor

    datamodule: Any = SimpleNamespace(train_dataloader=lambda: DataLoader([0, 1], collate_fn=lambda _: Opaque(torch.ones(2))))
    permute(datamodule, 1)
    with pytest.raises(TypeError, match=r"^a batch of type Opaque can't be permuted"):
        next(iter(datamodule.train_dataloader()))


def test_a_permutation_keeps_samples_whole() -> None:
    data = TensorDataset(torch.arange(8), torch.arange(8) * 10)
    datamodule: Any = SimpleNamespace(train_dataloader=lambda: DataLoader(data, batch_size=8))
    permute(datamodule, 1)
    inputs, targets = next(iter(datamodule.train_dataloader()))
    assert inputs.tolist() != list(range(8))
    assert sorted(inputs.tolist()) == list(range(8))
    assert torch.equal(targets, inputs * 10)


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


def judged(bits: int, weights: float, control: float, gradients: float = 0.0, sgd: bool = False) -> Comparison:
    cfg = OmegaConf.create({"trainer": {"precision": f"{bits}-true"}})
    found = [
        Difference(0, "loss", "", 0.0),
        Difference(2, "gradients", "net.weight", gradients),
        Difference(9, "weights", "net.bias", weights),
    ]
    return Comparison(
        Sides(cfg, cfg, steps=10),
        Findings(found, {"sgd": sgd}),
        Findings([Difference(2, "gradients", "", 0.0), Difference(9, "weights", "", control)], {}),
    )


@pytest.mark.parametrize(
    ("comparison", "equal"),
    [
        (judged(64, weights=9e-9, control=1e-9), True),
        (judged(64, weights=11e-9, control=1e-9), False),
        (judged(64, weights=9e-13, control=1e-13, sgd=True), True),
        (judged(64, weights=2e-12, control=1e-12, sgd=True), False),  # below ten controls, but above 1e-12
        (judged(32, weights=2e-12, control=1e-12, sgd=True), True),
        (judged(64, weights=0.0, control=0.0, gradients=1e-9), False),
        (judged(32, weights=0.0, control=0.0, gradients=9e-4), True),
        (judged(32, weights=0.0, control=0.0, gradients=2e-3), False),
        (judged(64, weights=1e-15, control=0.0), True),  # the control may happen to round alike
        (judged(64, weights=math.nan, control=1.0), False),
    ],
)
def test_the_rules_of_equality(comparison: Comparison, equal: bool) -> None:
    assert comparison.equal is equal
    assert ("NOT EQUAL" in comparison.table()) is not equal


def test_samples_and_rates_are_the_same_or_not_whatever_the_precision() -> None:
    for quantity in ("samples", "learning rate"):
        comparison = judged(32, weights=0.0, control=0.0)
        comparison.other.differences.append(Difference(1, quantity, "", 1e-4))
        assert not comparison.equal
    assert judged(32, weights=0.0, control=0.0, gradients=1e-4).equal


def test_the_first_step_and_parameter_are_named() -> None:
    first = judged(64, weights=1.0, control=0.0, gradients=1e-3).first
    assert first == Difference(2, "gradients", "net.weight", 1e-3)
    assert judged(64, weights=0.0, control=0.0).first is None


def said(comparison: Comparison) -> str:
    return verdict(Evidence(comparison.sides, comparison, None), [])


def test_a_drift_that_is_the_control_s_too_is_said_to_be_rounding() -> None:
    assert "Why: rounding, which this training amplifies" in said(judged(64, weights=2e-12, control=1e-12, sgd=True))
    for other in (judged(64, weights=1.0, control=1e-12), judged(64, weights=2e-12, control=1e-12, gradients=1e-3, sgd=True)):
        assert "Why: none of the causes known here" in said(other)


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("one", True), ("ddp", True), ("trainer.precision=32-true trainer.devices=2", True), ("two", False), (5, False)],
)
def test_what_a_run_is_compared_with(value: object, accepted: bool) -> None:
    assert is_reference(value) is accepted
