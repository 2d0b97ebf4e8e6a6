"""Batches on their way to a CUDA device."""

import pytest
import torch

from lockstep.datamodules.batches import Batches, InMemory
from lockstep.datamodules.loaders import make_loader
from lockstep.datamodules.samplers import EvalSampler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; `make gpu` shows it to the tests"),
]
IMAGES, TARGETS = torch.randint(256, (1000, 3, 64, 64), dtype=torch.uint8), torch.arange(1000)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_copied_ahead_are_the_same_in_the_same_order(workers: int) -> None:
    """Kept until the end: no copy may have been written over one that is in use."""
    options = {"pin_memory": True, "num_workers": workers}
    arrived = list(make_loader(Batches(InMemory(IMAGES, TARGETS)), EvalSampler(1000, 64), **options))
    expected = list(make_loader(Batches(InMemory(IMAGES, TARGETS)), EvalSampler(1000, 64)))
    assert len(arrived) == len(expected) == 16
    for own, other in zip(arrived, expected, strict=True):
        assert {tensor.device.type for tensor in own[:3]} == {"cuda"}
        assert all(torch.equal(a.cpu(), b) for a, b in zip(own[:3], other[:3], strict=True))


def test_a_step_that_is_slow_to_begin_still_finds_its_own_batch() -> None:
    """Each batch is summed after work that keeps the device busy while the next copies arrive and memory is handed out anew."""
    work, sums = torch.randn(2000, 2000, device="cuda"), []
    for batch in make_loader(Batches(InMemory(IMAGES, TARGETS)), EvalSampler(1000, 10), pin_memory=True):
        for _ in range(5):
            work = work @ work / 2000
        sums.append(batch.inputs.sum(dtype=torch.int64))
        del batch
    order = [indices.ids for indices in EvalSampler(1000, 10)]
    assert [int(total) for total in sums] == [int(IMAGES[ids].sum(dtype=torch.int64)) for ids in order]
