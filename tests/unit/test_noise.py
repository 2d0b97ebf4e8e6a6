"""Noise for a step: of each sample the same on any number of processes. benchmarks/noisy_modules.py trains with it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep import noise


@pytest.fixture(autouse=True)
def _no_step() -> Iterator[None]:
    yield
    noise.begin(None)


def step(rank: int = 0, ranks: int = 1, **options: Any) -> None:
    noise.begin(noise.Step(**({"seed": 1, "epoch": 2, "first": 60} | options), rank=rank, ranks=ranks))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": noise.rand_like,
    "normal": noise.randn_like,
    "dropout": lambda x: noise.dropout(x + 1, 0.3),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sample_has_the_same_noise_on_any_number_of_processes(kind: str, dtype: torch.dtype) -> None:
    x, draw = torch.zeros(11, 3, 2, dtype=dtype), DRAWS[kind]
    step()
    whole, again = draw(x), draw(x)
    assert whole.dtype == dtype
    assert not torch.equal(whole, again)  # another draw of the step
    for rank in range(3):
        step(rank, 3)
        assert torch.equal(draw(x[rank::3]), whole[rank::3])
    for other in ({"epoch": 3}, {"first": 71}, {"seed": 2}):
        step(**other)
        assert not torch.equal(draw(x), whole)


def test_numbers_are_distributed_as_they_should_be() -> None:
    step()
    x = torch.zeros(2000, 100)
    uniform, normal = noise.rand_like(x), noise.randn_like(x)
    assert 0 <= uniform.min() < uniform.max() < 1
    assert (uniform.mean().item(), uniform.var().item()) == pytest.approx((0.5, 1 / 12), abs=0.003)  # of 200,000 draws
    assert (normal.mean().item(), normal.var().item()) == pytest.approx((0, 1), abs=0.015)
    assert (normal.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.005)
    assert noise.dropout(x + 1, 1.0).sum() == 0
    assert torch.equal(noise.dropout(x, 0.5, training=False), x)


def test_of_the_whole_batch_one_number_and_one_permutation() -> None:
    step(size=7)
    assert sorted(noise.randperm(7).tolist()) == [*range(7)]
    numbers = []
    for rank in range(2):
        step(rank, 2)
        numbers.append(noise.of_batch().normal())
    assert numbers[0] == numbers[1]
    x = torch.rand(7, 2)
    step()
    assert noise.gather(x) is x


def test_rows_that_are_no_samples_are_refused() -> None:
    step(size=4)
    with pytest.raises(ValueError, match="noise for 8 rows in a batch of 4 samples: each row must be a sample"):
        noise.randn_like(torch.zeros(8, 2))
    step(1, 2, size=1)  # of dummy inputs
    assert noise.randn_like(torch.zeros(1, 2)).shape == (1, 2)
    assert noise.randn_like(torch.zeros(0, 2)).shape == (0, 2)


def test_outside_of_a_step_it_is_torch_s() -> None:
    x = torch.zeros(5, 2)
    for draw in (noise.rand_like, noise.randn_like, lambda x: noise.dropout(x + 1), lambda x: noise.randperm(len(x))):
        torch.manual_seed(0)
        first = draw(x)
        torch.manual_seed(0)
        assert torch.equal(draw(x), first)
        assert not torch.equal(draw(x), first)
