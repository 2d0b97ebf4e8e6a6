"""Dropout that drops the same elements of a sample in any batch."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from lockstep import noise
from lockstep.nets import Dropout


@pytest.fixture(autouse=True)
def _no_step() -> Iterator[None]:
    yield
    noise.begin(None)


def counted_dropout(p: float, samples: int, *, epoch: int = 0, layer: int = 0, elements: int = 6, **step: int) -> Tensor:
    """Ones after dropout, in a step of so many samples in all processes."""
    noise.begin(noise.Step(0, epoch, **{"first": 0, "rank": 0, "ranks": 1} | step, size=samples))
    dropout = Dropout(p)
    dropout.stream = layer
    return dropout(torch.ones(len(range(step.get("rank", 0), samples, step.get("ranks", 1))), elements))


def test_a_sample_loses_the_same_elements_in_any_batch() -> None:
    whole = counted_dropout(0.5, 40)
    assert torch.equal(torch.cat([counted_dropout(0.5, 20, first=first) for first in (0, 20)]), whole)
    for rank in range(3):
        assert torch.equal(counted_dropout(0.5, 40, rank=rank, ranks=3), whole[rank::3])
    assert not torch.equal(counted_dropout(0.5, 40, epoch=1), whole)
    assert not torch.equal(counted_dropout(0.5, 40, layer=1), whole)
    assert counted_dropout(0.5, 0).shape == (0, 6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_it_should_and_the_mean(p: float) -> None:
    """400,000 draws: the share kept has a standard deviation of at most 0.0008."""
    kept = counted_dropout(p, 4000, elements=100)
    assert kept.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    assert (kept > 0).double().mean() == pytest.approx(1 - p, abs=0.004)
    columns = (kept > 0).double().mean(0)  # each element, over the samples
    assert columns.std() == pytest.approx(math.sqrt(p * (1 - p) / 4000), rel=0.35)
    agreement = ((kept[:, :50] > 0) == (kept[:, 50:] > 0)).double().mean()  # of two elements of one sample: as of two coins
    assert agreement == pytest.approx(p * p + (1 - p) ** 2, abs=0.006)


def test_dropout_of_everything_of_nothing_and_uncounted() -> None:
    assert counted_dropout(1.0, 5).tolist() == torch.zeros(5, 6).tolist()
    assert counted_dropout(0.0, 5).tolist() == torch.ones(5, 6).tolist()
    noise.begin(None)
    dropout, x = Dropout(0.5), torch.randn(5, 6)
    dropout.stream = 0
    torch.manual_seed(3)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), expected)
    noise.begin(noise.Step(0, 0, first=0, rank=0, ranks=1, size=5))
    with pytest.raises(ValueError, match="noise for 4 rows in a batch of 5 samples: each row must be a sample"):
        dropout(torch.ones(4, 6))


def test_dropout_that_is_computed_again_drops_the_same_elements() -> None:
    noise.begin(noise.Step(0, 0, first=0, rank=0, ranks=1, size=5))
    dropout, x = Dropout(0.5), torch.ones(5, 6, requires_grad=True)
    dropout.stream = 0
    output: Tensor = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
    output.sum().backward()
    assert torch.equal(output.detach(), x.grad)  # pyright: ignore[reportArgumentType]
