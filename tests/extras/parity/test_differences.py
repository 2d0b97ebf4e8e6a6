"""How far two tensors lie apart; which samples a step has had, whatever process has had them."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.extras.parity.differences import (
    Differences,
    Fingerprints,
    compare_samples,
    copy_tensors,
    difference,
    fingerprints,
    gather,
)
from lockstep.extras.parity.sides import Difference

IMAGES = torch.randint(256, (8, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


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
    assert difference(a, torch.tensor([3 + 6j])) == 0.4
    assert difference(torch.tensor([4.0]), torch.tensor([4 + 1j])) == 0.25


def test_what_is_counted_is_the_same_or_not() -> None:
    assert difference(torch.tensor(1_000_000), torch.tensor(1_000_001)) == math.inf
    assert difference(torch.tensor(7), torch.tensor(7)) == 0.0


def test_each_tensor_is_compared_and_one_that_is_missing_is_infinitely_far_or_zero() -> None:
    reference = {"a": torch.ones(2), "b": torch.ones(2), "gone": torch.zeros(1)}
    other = {"a": torch.tensor([1.0, 1.25]), "b": torch.tensor([1.0, 0.5]), "new": torch.ones(1)}
    for absent_is_zero, gone in ((True, 0.0), (False, math.inf)):
        differences = Differences()
        differences.add(3, "gradients", reference, other, absent_is_zero)
        expected = {"a": 0.25, "b": 0.5, "gone": gone, "new": math.inf}
        assert differences.all == [Difference(3, "gradients", name, value, bits=32) for name, value in expected.items()]


def test_what_is_left_of_a_gradient_that_was_large_is_rounding() -> None:
    differences = Differences()
    for step, size in enumerate((1.0, 1e-12)):
        differences.add(step, "gradients", {"w": torch.tensor(size)}, {"w": torch.tensor(size + 1e-16, dtype=torch.float64)})
    assert differences.all[1].value < 1e-15
    differences.add(2, "gradients", {"w": torch.tensor(0.25)}, {"w": torch.tensor(0.5)})
    assert differences.all[2].value == 0.25


def test_by_entry_a_large_one_hides_nothing_and_one_that_is_nearly_zero_makes_nothing_large() -> None:
    differences = Differences()
    a = torch.tensor([1e12, 0.5, 1e-16, 2.0], dtype=torch.float64)
    differences.add(0, "buffers", {"mean": a}, {"mean": a + torch.tensor([0.0, 0.25, 0.0, 0.0])}, by_entry=True)
    differences.add(0, "buffers", {"other": a}, {"other": a + torch.tensor([0.0, 0.0, 1e-16, 0.0])}, by_entry=True)
    masked = torch.tensor([-math.inf, 1.0])
    differences.add(0, "buffers", {"mask": masked}, {"mask": masked * 1.5}, by_entry=True)
    assert [round(difference.value, 12) for difference in differences.all] == [0.5, 0.0, 0.5]
    differences.add(0, "buffers", {"state": torch.zeros(1, 8)}, {"state": torch.zeros(1, 4)}, by_entry=True)
    assert differences.all[-1].value == math.inf


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch 2.11 warns though they are not
def test_sparse_gradients_are_copied_densely_and_what_is_no_tensor_is_left_out() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (3,), check_invariants=True)
    assert copy_tensors({"sparse": sparse, "version": 1})["sparse"].tolist() == [0.0, 5.0, 0.0]
    assert copy_tensors({"version": 1}) == {}


def prints(*batches: Any) -> Fingerprints:
    return gather([fingerprints(batch) for batch in batches], share=0)


def batch(*ids: int) -> Any:
    return {"images": IMAGES[list(ids)], "ids": torch.tensor(ids), "share": 1.0}


def test_the_same_samples_in_any_parts_and_order_are_the_same() -> None:
    reference = prints(batch(0, 1, 2, 3, 4, 5))
    distance, left_out, is_longer = compare_samples(reference, prints(batch(5, 3, 1), batch(0, 2, 4), batch()))
    assert distance is not None
    assert distance < 1e-12
    assert (left_out, is_longer) == (set(), False)


def test_another_sample_or_one_that_is_mirrored_is_not() -> None:
    assert (compare_samples(prints(batch(0, 1)), prints(batch(0, 2)))[0] or 0) > 1e-6
    mirrored = batch(0, 1) | {"images": IMAGES[:2].flip(3)}
    assert (compare_samples(prints(batch(0, 1)), prints(mirrored))[0] or 0) > 1e-6


def test_a_sample_too_many_is_infinitely_far() -> None:
    assert compare_samples(prints(batch(0, 1, 2)), prints(batch(0, 2), batch(1, 0))) == (math.inf, set(), True)
    assert compare_samples(prints(batch(0, 1, 2)), prints(batch(0), batch(1))) == (math.inf, set(), False)


def test_time_may_come_first() -> None:
    series = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(0))
    whole, halves = prints((series, torch.arange(8))), prints(*((series[:, k::2], torch.arange(8)[k::2]) for k in (0, 1)))
    distance, left_out, _ = compare_samples(whole, halves)
    assert distance is not None
    assert distance < 1e-12
    assert left_out == set()


def test_padding_to_several_lengths_is_left_out_and_said_to_be_so() -> None:
    labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    halves = ({"ids": torch.tensor([0]), "labels": labels[:1]}, {"ids": torch.tensor([1]), "labels": labels[1:, :1]})
    assert compare_samples(prints({"ids": torch.arange(2), "labels": labels}), prints(*halves)) == (0.0, {"batch.labels"}, False)
    assert compare_samples(prints(labels), prints(labels[:1], labels[1:, :1])) == (None, {"batch"}, False)


def test_batches_may_be_dataclasses_and_complex() -> None:
    @dataclass
    class Opaque:
        inputs: Tensor

    waves = torch.tensor([1 + 1j, 1 + 2j])
    assert compare_samples(prints(Opaque(waves)), prints(Opaque(waves[[1, 0]])))[0] == 0.0
    assert compare_samples(prints(Opaque(waves)), prints(Opaque(waves.real + 0j)))[0] != 0.0
