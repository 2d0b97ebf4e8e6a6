"""How far two tensors lie apart; which samples a step has had, whatever process has had them."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep.parity.comparison import _tolerance
from lockstep.parity.sketches import add_sums, difference, sketch, sums_of
from lockstep.parity.switches import _join

LABELS = torch.tensor([[1, 2, 3], [4, -100, -100], [5, 6, -100]])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch 2.11 warns though they are not
def test_a_difference_is_relative_to_the_largest_value_of_the_first() -> None:
    a, sparse = torch.tensor([1.0, -4.0]), torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (2,))
    for one, other, expected in (
        (a, a + torch.tensor([0.5, 0.0]), 0.125),
        (torch.zeros(2), a, math.inf),
        (a, torch.tensor([1.0]), math.inf),
        (a, a * math.nan, math.inf),
        (a * math.nan, a * math.nan, 0.0),
        (torch.zeros(0), torch.zeros(0), 0.0),
        (torch.tensor([3 + 4j]), torch.tensor([3 + 6j]), 0.5),
        (torch.tensor(1_000_000), torch.tensor(1_000_001), math.inf),
        (sparse, torch.tensor([0.0, 5.0]), 0.0),
        (torch.zeros(1), torch.tensor([-0.0]), math.ulp(0.0)),
        (torch.arange(9000.0), torch.arange(9000.0).index_fill(0, torch.tensor([8999]), 0.0), 1.7e-4),  # by the norm
    ):
        assert difference(sketch(one), sketch(other)) == pytest.approx(expected, rel=0.1, abs=0), (one, other)
    assert difference(sketch(a), None) == math.inf
    assert difference(sketch(a * 1e-9), sketch(a * 2e-9), largest=4.0, norm=5.0) < 1e-8


def test_by_entry_a_large_one_hides_nothing_and_one_that_is_nearly_zero_makes_nothing_large() -> None:
    a = torch.tensor([1e12, 0.5, 1e-16, 2.0]).double()
    for change, expected in (([0.0, 0.25, 0.0, 0.0], 0.5), ([0.0, 0.0, 1e-16, 0.0], 0.0)):
        assert difference(sketch(a), sketch(a + torch.tensor(change).double()), by_entry=True) == pytest.approx(expected)


def apart(batches: list[Any], others: list[Any]) -> float:
    a, b = (add_sums([sums_of(batch) for batch in each]) for each in (batches, others))
    return max((difference(a[name], b[name], by_entry=True) for name in a.keys() & b.keys()), default=0.0)


def test_the_same_samples_in_any_parts_and_order_are_the_same() -> None:
    images, series = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((8, 1, 4, 4), (3, 8, 2)))
    assert apart([images], [images[[5, 3, 1, 7]], images[::2], images[:0]]) < 1e-12
    assert apart([series], [series[:, ::2], series[:, 1::2]]) < 1e-12  # time comes first
    for other in (images[:7], torch.cat([images, images[:1]]), images.flip(3), images[[0, 1, 2, 3, 4, 5, 6, 6]]):
        assert apart([images], [other]) > 1e-6
    assert apart([LABELS], [LABELS[:1], LABELS[1:, :1]]) == 0.0  # padded ones are left out


def test_the_batch_of_all_processes_is_that_of_one() -> None:
    assert torch.equal(_join([{"labels": LABELS[::2]}, {"labels": LABELS[1::2, :1]}], 1)["labels"], LABELS)


def test_metrics_of_targets_in_float32_may_differ_by_their_rounding() -> None:
    """Binary cross entropy with a float32 mask differs by 2.7e-8, where weights agree to 7e-14; Lightning adds up in float64."""
    sides: Any = SimpleNamespace(bits=64, exact=False)
    assert _tolerance(sides, "training metrics", {"bits": 64}) > 1e-7 > _tolerance(sides, "weights", {"bits": 64})
