"""Means over samples, against numbers worked out by hand."""

import numpy
import torch

from lockstep.models.sample_mean import SampleMean


def test_a_sample_mean_is_the_mean_over_samples_in_float64() -> None:
    """In float32 the sum would stop growing at 2 ** 24; in float64 sums of multiples of 1/4 are exact."""
    values = torch.arange(1_000_000, dtype=torch.float32) / 4 + 2**20
    means = SampleMean(["loss"])
    for part in values.split(999):
        means.update({"loss": part})
    expected = numpy.asarray(values).astype(numpy.float64).mean()
    assert float(means.compute()["loss"]) == float(expected) == 2**20 + 999_999 / 8
    assert int(means.count) == 1_000_000


def test_a_sample_mean_weighs_samples_not_batches() -> None:
    means = SampleMean(["loss", "acc"])
    means.update({"loss": torch.tensor([1.0, 1.0, 1.0]), "acc": torch.tensor([True, True, True])})
    means.update({"loss": torch.tensor([5.0]), "acc": torch.tensor([False])})
    means.update({"loss": torch.empty(0), "acc": torch.empty(0, dtype=torch.bool)})  # a rank without a sample in a tail
    computed = means.compute()
    assert {name: float(value) for name, value in computed.items()} == {"loss": 2.0, "acc": 0.75}  # (3 + 5) / 4, 3 / 4
    assert all(value.dtype == torch.float64 for value in computed.values())
    assert int(means.count) == 4


def test_a_sample_mean_starts_anew_after_a_reset() -> None:
    means = SampleMean(["loss"])
    means.update({"loss": torch.tensor([10.0])})
    means.compute()
    means.reset()
    means.update({"loss": torch.tensor([1.0, 2.0])})
    assert float(means.compute()["loss"]) == 1.5
    assert int(means.count) == 2


def test_a_sample_mean_keeps_no_graph_and_stays_in_float64_in_a_half_precision_model() -> None:
    means = SampleMean(["loss"]).bfloat16()
    means.update({"loss": torch.ones(3, dtype=torch.bfloat16, requires_grad=True)})
    assert means.sums.dtype == torch.float64
    assert not means.sums.requires_grad
