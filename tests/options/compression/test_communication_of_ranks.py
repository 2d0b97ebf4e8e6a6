"""Gradients sent in fewer bits, by torch's hooks: a resumption changes no bit, and the claim of exactness is withdrawn."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from in_process import KeepAll, trained
from ranks import in_ranks

from lockstep.callbacks.equivalence import EquivalenceReport

pytestmark = pytest.mark.slow
OPTIONS = ("trainer.devices=2", "datamodule.batch_size=150", "trainer.max_epochs=2", "model.net.dropout=0.2")
OPTIONS += ("trainer/communication=bf16",)


def run_twice(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Train, and go on from the second step of the second epoch."""
    whole, trainer = trained(folder / "whole", *OPTIONS, extra=[KeepAll(folder)])
    callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    dist.barrier()
    resumed, _ = trained(folder / "resumed", *OPTIONS, ckpt_path=folder / "6.ckpt")
    return {
        "causes": next(callback.causes for callback in callbacks if isinstance(callback, EquivalenceReport)),
        "differences": differences(whole | {"callbacks": None}, resumed | {"callbacks": None}),
        "weights": resumed["state_dict"],
    }


def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    ranks = in_ranks(2, partial(run_twice, folder=tmp_path), tmp_path)
    assert [rank["differences"] for rank in ranks] == [[], []]
    assert differences(*(rank["weights"] for rank in ranks)) == []
    for rank in ranks:
        assert "trainer.strategy.communication=bf16: gradients are sent in fewer bits" in rank["causes"]
