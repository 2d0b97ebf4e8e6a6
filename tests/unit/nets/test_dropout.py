"""Dropout that drops the same elements of a sample in any batch."""

import math

import pytest
import torch
from torch import Tensor, nn

from lockstep.nets import Dropout
from lockstep.noise import random_bits


def counted_dropout(p: float, ids: Tensor, *, epoch: int = 0, layer: int = 0, elements: int = 6) -> Tensor:
    """Ones after dropout."""
    dropout = Dropout(p)
    dropout.count(random_bits(0, epoch, ids, layer))
    return dropout(torch.ones(len(ids), elements))


def test_a_sample_loses_the_same_elements_in_any_batch() -> None:
    ids = torch.arange(40)
    whole = counted_dropout(0.5, ids)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(counted_dropout(0.5, ids[order]), whole[order])
    for rank in range(3):
        assert torch.equal(counted_dropout(0.5, ids[rank::3]), whole[rank::3])
    assert not torch.equal(counted_dropout(0.5, ids, epoch=1), whole)
    assert not torch.equal(counted_dropout(0.5, ids, layer=1), whole)
    assert counted_dropout(0.5, ids[:0]).shape == (0, 6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_it_should_and_the_mean(p: float) -> None:
    """400,000 draws: the share kept has a standard deviation of at most 0.0008."""
    kept = counted_dropout(p, torch.arange(4000), elements=100)
    assert kept.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    assert (kept > 0).double().mean() == pytest.approx(1 - p, abs=0.004)
    columns = (kept > 0).double().mean(0)  # each element, over the samples
    assert columns.std() == pytest.approx(math.sqrt(p * (1 - p) / 4000), rel=0.35)
    agreement = ((kept[:, :50] > 0) == (kept[:, 50:] > 0)).double().mean()  # of two elements of one sample: as of two coins
    assert agreement == pytest.approx(p * p + (1 - p) ** 2, abs=0.006)


def test_dropout_of_everything_of_nothing_and_uncounted() -> None:
    ids = torch.arange(5)
    assert counted_dropout(1.0, ids).tolist() == torch.zeros(5, 6).tolist()
    assert counted_dropout(0.0, ids).tolist() == torch.ones(5, 6).tolist()
    x = torch.randn(5, 6)
    torch.manual_seed(3)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x), expected)
    dropout = Dropout(0.5)
    dropout.count(ids)
    with pytest.raises(ValueError, match="dropout of 4 rows in a batch of 5 samples"):
        dropout(torch.ones(4, 6))
