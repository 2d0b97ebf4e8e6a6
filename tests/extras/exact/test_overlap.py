"""Gradients that are sent from within the backward pass: the same bits as those that are sent after it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule
from ranks import in_ranks
from torch import Tensor

from lockstep.extras.exact import step as steps
from lockstep.extras.exact.overlap import Exchange, Overlap
from lockstep.extras.exact.step import Step
from lockstep.extras.exact.tree import sums_beside_first

WORKERS, RANKS = 8, 2


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(3)))
        self.last = torch.nn.Linear(5, 1)

    def training_step(self, batch: Tensor, _: Any = None) -> Tensor:
        return self.last(self.layers(batch)).square().mean()


def gradients(rank: int, world_size: int, is_early: bool, changes: bool = False) -> dict[str, Any]:
    steps.BUCKET_BYTES = 1  # a bucket for each parameter
    model = Net()
    step, exchange = Step(model, WORKERS), Exchange(torch.device("cpu"))

    def work(index: int) -> Tensor:
        step.begin()
        loss = model.training_step(torch.randn(4, 5, generator=torch.Generator().manual_seed(rank + index * world_size)))
        loss.backward()
        if changes:  # after the backward pass, as a hook of the whole pass does
            model.last.bias.grad.mul_(2)  # pyright: ignore[reportOptionalMemberAccess]
        return loss

    own = sums_beside_first(WORKERS // world_size, lambda index: step.leaf(work(index), has_logged=False))
    with Overlap(step, own, exchange, is_early) as overlap:
        loss = work(0)
        sent = len(overlap._sums)
    step.take(overlap.finish(step.rest(loss, is_first=rank == 0, has_logged=False)))
    step.write_gradients()
    return {"sent": sent, "has_changed": overlap.has_changed, "gradients": [p.grad for p in model.parameters()]}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [False, True])
def test_what_is_sent_early_is_what_is_sent_late(changes: bool, tmp_path: Path) -> None:
    found = {}
    for is_early in (True, False):
        folder = tmp_path / str(is_early)
        folder.mkdir()
        found[is_early] = in_ranks(RANKS, partial(gradients, is_early=is_early, changes=changes), folder)
    assert [rank["sent"] for rank in found[True]] == [8, 8]
    assert [rank["sent"] for rank in found[False]] == [0, 0]
    assert all(rank["has_changed"] == (is_early and changes) for is_early, ranks in found.items() for rank in ranks)
    one = found[False][0]["gradients"]
    assert one[0] is None
    for ranks in found.values():
        for rank in ranks:
            assert all(a is b is None or torch.equal(a, b) for a, b in zip(rank["gradients"], one, strict=True))
