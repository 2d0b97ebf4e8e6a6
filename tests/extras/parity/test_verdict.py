"""What of a difference is tolerated, and what is said of it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from lockstep.extras.parity.comparison import Comparison, is_another_training
from lockstep.extras.parity.sides import Difference, Findings, Sides, is_reference
from lockstep.extras.parity.verdict import not_compared, verdict


def comparison_with(bits: int, weights: float, control: float, gradients: float = 0.0, sgd: bool = False) -> Comparison:
    cfg = OmegaConf.create({"trainer": {"precision": f"{bits}-true", "accumulate_grad_batches": 1}})
    result = [
        Difference(0, "loss", "", 0.0),
        Difference(2, "gradients", "net.weight", gradients, size=1.0),
        Difference(9, "weights", "net.bias", weights),
    ]
    return Comparison(
        Sides(cfg, cfg, steps=10),
        Findings(result, {"sgd": sgd}),
        Findings([Difference(2, "gradients", "", 0.0), Difference(9, "weights", "", control)], {"epoch": 1}),
    )


@pytest.mark.parametrize(
    ("comparison", "equal"),
    [
        (comparison_with(64, weights=9e-9, control=1e-9), True),
        (comparison_with(64, weights=11e-9, control=1e-9), False),
        (comparison_with(64, weights=9e-13, control=1e-13, sgd=True), True),
        (comparison_with(64, weights=2e-12, control=1e-12, sgd=True), False),  # below ten controls, but above 1e-12
        (comparison_with(32, weights=2e-12, control=1e-12, sgd=True), True),
        (comparison_with(64, weights=0.0, control=0.0, gradients=1e-9), False),
        (comparison_with(32, weights=0.0, control=0.0, gradients=9e-4), True),
        (comparison_with(32, weights=0.0, control=0.0, gradients=2e-3), False),
        (comparison_with(64, weights=1e-15, control=0.0), True),  # the control may happen to round alike
        (comparison_with(64, weights=math.nan, control=1.0), False),
    ],
)
def test_the_rules_of_equality(comparison: Comparison, equal: bool) -> None:
    assert comparison.equal is equal
    assert ("NOT EQUAL" in comparison.table()) is not equal


def test_samples_and_rates_are_the_same_or_not_whatever_the_precision() -> None:
    for quantity in ("samples", "learning rate"):
        comparison = comparison_with(32, weights=0.0, control=0.0)
        comparison.other.differences.append(Difference(1, quantity, "", 1e-4))
        assert not comparison.equal
    assert comparison_with(32, weights=0.0, control=0.0, gradients=1e-4).equal


def test_the_first_step_and_parameter_are_named() -> None:
    first = comparison_with(64, weights=1.0, control=0.0, gradients=1e-3).first
    assert first == Difference(2, "gradients", "net.weight", 1e-3)
    assert comparison_with(64, weights=0.0, control=0.0).first is None


def tolerated(quantity: str, value: float, control: float = 0.0, precision: int = 64, bits: int = 64) -> bool:
    result = comparison_with(precision, weights=0.0, control=0.0)
    result.other.differences.append(Difference(1, quantity, "it", value, bits, size=1.0))
    result.control.differences.append(Difference(1, quantity, "it", control, size=1.0))
    return result.equal


def test_rounding_that_the_control_shows_too_is_tolerated_tensor_by_tensor() -> None:
    assert tolerated("gradients", 9e-10, control=1e-10)
    assert not tolerated("gradients", 11e-10, control=1e-10)
    assert not tolerated("gradients", 1e-7, control=1.0)
    assert not tolerated("gradients", 2e-3, control=1.0, precision=32)
    other = comparison_with(64, weights=0.0, control=0.0, gradients=1e-9)
    other.control.differences.append(Difference(2, "gradients", "another", 1e-9))
    assert not other.equal


@pytest.mark.parametrize(("size", "equal"), [(1e-17, True), (1e-9, False)])
def test_gradients_of_rounding_alone_are_not_compared(size: float, equal: bool) -> None:
    """Nor what an optimizer makes of them; but a gradient that is something is, on either side."""
    result = comparison_with(64, weights=0.0, control=0.0)
    result.other.differences.extend([Difference(0, "gradients", "weight", 0.0, size=1.0), Difference(9, "weights", "bias", 0.5)])
    result.other.differences.append(Difference(0, "gradients", "bias", 2.0, size=size))
    result.control.differences.append(Difference(0, "gradients", "bias", 1.0, size=1e-17))
    assert result.rounding_alone == ({"bias"} if equal else set())
    assert result.equal is equal


def test_buffers_may_drift_as_the_weights_do_or_as_they_themselves_do_in_the_control() -> None:
    for value, control, equal in ((9e-9, 0.0, True), (2e-8, 0.0, False), (2e-8, 3e-9, True), (math.inf, math.inf, True)):
        result = comparison_with(64, weights=0.0, control=1e-9)
        result.other.differences.append(Difference(9, "buffers at the end", "mean", value))
        result.control.differences.append(Difference(9, "buffers at the end", "mean", control))
        assert result.equal is equal
        assert "buffers after 10 steps" in result.table()


def test_a_number_held_in_float32_may_round_there() -> None:
    assert tolerated("validation metrics", 1e-7, bits=32)
    assert not tolerated("validation metrics", 1e-7)
    assert not tolerated("validation metrics", 1e-4, bits=32)


def test_a_control_whose_loss_differs_within_a_step_is_another_training() -> None:
    assert is_another_training(Findings([Difference(0, "loss", "", 1e-3)], {}), 64)
    assert is_another_training(Findings([Difference(0, "steps per epoch", "", math.inf)], {}), 64)
    assert not is_another_training(Findings([Difference(0, "loss", "", 1e-15), Difference(0, "gradients", "bias", 1.0)], {}), 64)


def test_what_a_verdict_does_not_rest_on_is_listed() -> None:
    facts: dict[str, Any] = {
        "batches per epoch": 40,
        "no loss": False,
        "losses": 1,
        "ran": {"validation"},
        "untrained": ["a", "b", "c", "d"],
    }
    facts |= {"logged per step": set(), "not tensors": set(), "samples left out": set()}
    sides = OmegaConf.create({"trainer": {"precision": "64-true", "accumulate_grad_batches": 2}})
    result = Comparison(Sides(sides, sides, steps=10), Findings([], facts), Findings([], facts))
    assert not_compared(result) == [
        "what comes later, since these 10 steps end before the first epoch, of 20, does",
        "test, since none ran",
        "parameters that had no gradient in any step (a, b, c and 1 more)",
    ]
    assert not_compared(replace(result, sides=Sides(sides, sides, steps=20)))[0] == "test, since none ran"


@pytest.mark.parametrize(("losses", "which"), [(0, "any step"), (3, "some steps")])
def test_a_loss_that_is_not_returned_is_no_row_of_the_table(losses: int, which: str) -> None:
    result = comparison_with(64, weights=1e-12, control=1e-12)
    result.other.differences.append(Difference(9, "loss", "", 0.0))
    result.control.facts.update({"losses": losses, "no loss": True, "batches per epoch": 5, "untrained": [], "ran": set()})
    result.control.facts.update({"logged per step": set(), "not tensors": set()})
    result.other.facts["samples left out"] = set()
    assert ("loss" in result.table()) is (losses > 0)
    assert f"the loss of {which}, which the model does not return; gradients and weights are" in not_compared(result)


def said(comparison: Comparison) -> str:
    return verdict(comparison, [])


def test_a_drift_that_is_the_control_s_too_is_said_to_be_rounding() -> None:
    assert "Why: rounding, which this training amplifies" in said(comparison_with(64, weights=2e-12, control=1e-12, sgd=True))
    assert said(comparison_with(64, weights=2e-12, control=0.0)).endswith(
        "\nCompared up to step 9, in epoch 1; what comes later was not compared."
    )
    for other in (
        comparison_with(64, weights=1.0, control=1e-12),
        comparison_with(64, weights=2e-12, control=1e-12, gradients=1e-3, sgd=True),
    ):
        assert "Why: none of the causes known here" in said(other)


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("one", True), ("ddp", True), ("trainer.precision=32-true trainer.devices=2", True), ("two", False), (5, False)],
)
def test_what_a_run_is_compared_with(value: object, accepted: bool) -> None:
    assert is_reference(value) is accepted
