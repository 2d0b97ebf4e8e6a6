"""Which samples a step has had, whatever process has had them."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.parity.samples import Prints, compare_samples, fingerprints, gathered

IMAGES = torch.randint(256, (8, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def prints(*batches: Any) -> Prints:
    return gathered([fingerprints(batch) for batch in batches])


def batch(*ids: int) -> Any:
    return {"images": IMAGES[list(ids)], "ids": torch.tensor(ids), "share": 1.0}


def test_the_same_samples_in_any_parts_and_order_are_the_same() -> None:
    ours = prints(batch(0, 1, 2, 3, 4, 5))
    distance, left_out, is_longer = compare_samples(ours, prints(batch(5, 3, 1), batch(0, 2, 4), batch()))
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
