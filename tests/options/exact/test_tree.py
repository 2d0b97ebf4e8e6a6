"""The sum over processes is that of the tree, to the bit, for tensors of any shape."""

from pathlib import Path

import pytest
import torch
from ranks import in_ranks

from lockstep.exact.tree import sum_over_processes

LENGTHS = (0, 1, 3, 64, 1001)


def drawn(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(length, generator=generator) for length in LENGTHS]
    return [*tensors, torch.randn(2, 3, generator=generator), torch.randn((), generator=generator), torch.arange(5) + rank]


def sum_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows v and v + V/2 are added first, then those sums of v and v + V/4."""
    half = len(rows) // 2
    return sum_of_rows(rows[:half] + rows[half:]) if half else rows[0]


def sums(rank: int, _: int) -> list[torch.Tensor]:
    return sum_over_processes(drawn(rank))


@pytest.mark.slow
def test_it_is_that_of_the_tree(tmp_path: Path) -> None:
    rows = zip(*(drawn(rank) for rank in range(4)), strict=True)
    expected = [sum_of_rows(torch.stack(row)) for row in rows]
    for summed in in_ranks(4, sums, tmp_path):
        assert all(torch.equal(a, b) for a, b in zip(summed, expected, strict=True))
