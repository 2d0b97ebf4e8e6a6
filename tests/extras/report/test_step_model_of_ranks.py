"""The model of a step's time, held against real processes whose messages are held back by a known delay."""

import statistics
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks

from lockstep.extras.report.step_model import Timing, fit

pytestmark = pytest.mark.slow
COUNTS, LEFT_OUT = (1, 2, 3, 4), 6
COMPUTE, LATENCY = 0.06, 0.01  # seconds: a multiple of what a process may have to wait for a core
BYTES, BANDWIDTH = 1_000_000, 10e6  # 100 ms for all of it
STEPS = 8


def ring_all_reduce(gradient: torch.Tensor, rank: int, count: int) -> None:
    """Over the first `count` ranks: 2(n-1) messages of a part each (Patarasuk and Yuan 2009). A link is as slow as told."""
    parts = list(gradient.chunk(count))
    for i in range(2 * (count - 1)):
        received = torch.empty_like(parts[(rank - i - 1) % count])
        time.sleep(LATENCY + BYTES / count / BANDWIDTH)
        sent = dist.isend(parts[(rank - i) % count], (rank + 1) % count)
        dist.recv(received, (rank - 1) % count)
        if sent is not None:
            sent.wait()
        mine = parts[(rank - i - 1) % count]
        mine.copy_(mine + received if i < count - 1 else received)


def times(rank: int, _: int) -> list[tuple[int, float]]:
    """By rank zero, seconds of steps on each number of ranks, in turn; the others wait meanwhile."""
    fitted = []
    for count in (*COUNTS, LEFT_OUT) * STEPS:
        dist.barrier()
        if rank < count:
            gradient = torch.full((BYTES // 4 // 60 * 60,), float(rank))
            start = time.perf_counter()
            time.sleep(COMPUTE)
            ring_all_reduce(gradient, rank, count)
            fitted.append((count, time.perf_counter() - start))
            assert gradient.eq(sum(range(count))).all()
    return fitted


def test_a_count_left_out_of_the_fit_is_predicted(tmp_path: Path) -> None:
    """By the fastest steps: in the others a process had to wait for a core."""
    measured = in_ranks(LEFT_OUT, times, tmp_path)[0]
    fastest = {count: sorted(seconds for n, seconds in measured if n == count)[: STEPS // 4] for count in (*COUNTS, LEFT_OUT)}
    fitted = fit([Timing(count, 1, seconds) for count in COUNTS for seconds in fastest[count]])
    assert fitted is not None
    assert fitted.model.seconds(LEFT_OUT, 1) == pytest.approx(statistics.median(fastest[LEFT_OUT]), rel=0.15)
