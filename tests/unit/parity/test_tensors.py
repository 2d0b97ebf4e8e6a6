"""How far two tensors lie apart."""

import math

import torch

from lockstep.parity.sides import Difference
from lockstep.parity.tensors import Differences, copied, difference


def test_a_difference_is_relative_to_the_largest_value_of_the_first() -> None:
    a = torch.tensor([1.0, -4.0])
    assert difference(a, a + torch.tensor([0.5, 0.0])) == 0.125
    assert difference(torch.zeros(2), a) == math.inf
    assert difference(a, torch.tensor([1.0])) == math.inf
    assert difference(a, a * math.nan) == math.inf
    assert difference(a * math.nan, a * math.nan) == 0.0
    assert difference(torch.zeros(0), torch.zeros(0)) == 0.0


def test_the_imaginary_part_counts() -> None:
    a = torch.tensor([3 + 4j])
    assert difference(a, torch.tensor([3 + 6j])) == 0.5
    assert difference(torch.tensor([4.0]), torch.tensor([4 + 1j])) == 0.25


def test_what_is_counted_is_the_same_or_not() -> None:
    assert difference(torch.tensor(1_000_000), torch.tensor(1_000_001)) == math.inf
    assert difference(torch.tensor(7), torch.tensor(7)) == 0.0


def test_each_tensor_is_compared_and_one_that_is_missing_is_infinitely_far_or_zero() -> None:
    ours = {"a": torch.ones(2), "b": torch.ones(2), "gone": torch.zeros(1)}
    theirs = {"a": torch.tensor([1.0, 1.25]), "b": torch.tensor([1.0, 0.5]), "new": torch.ones(1)}
    for absent_is_zero, gone in ((True, 0.0), (False, math.inf)):
        found = Differences()
        found.add(3, "gradients", ours, theirs, absent_is_zero)
        expected = {"a": 0.25, "b": 0.5, "gone": gone, "new": math.inf}
        assert found.found == [Difference(3, "gradients", name, value, bits=32) for name, value in expected.items()]


def test_what_is_left_of_a_gradient_that_was_large_is_rounding() -> None:
    found = Differences()
    for step, size in enumerate((1.0, 1e-12)):
        found.add(step, "gradients", {"w": torch.tensor(size)}, {"w": torch.tensor(size + 1e-16, dtype=torch.float64)})
    assert found.found[1].value < 1e-15
    found.add(2, "gradients", {"w": torch.tensor(0.25)}, {"w": torch.tensor(0.5)})
    assert found.found[2].value == 0.25


def test_sparse_gradients_are_copied_densely_and_what_is_no_tensor_is_left_out() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (3,), check_invariants=True)
    assert copied({"sparse": sparse, "version": 1})["sparse"].tolist() == [0.0, 5.0, 0.0]
    assert copied({"version": 1}) == {}
