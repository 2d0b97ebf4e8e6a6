"""What is sent in the place of whole gradients, by torch's hooks over gloo; and that it is said to be inexact."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from in_process import KeepAll, become_rank, trained
from ranks import in_ranks

pytestmark = pytest.mark.slow
OPTIONS = ("trainer.devices=2", "datamodule.batch_size=150", "trainer.max_epochs=2", "model.net.dropout=0.2")
CHOICES = ("fp16", "bf16")
RESUMED_FROM = 6  # steps: the second of a second epoch


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has measured: one group for all tests of this file."""
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(2, partial(check_all, folder=folder), folder)


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    return {choice: run_twice(folder / choice, choice) for choice in CHOICES}


def run_twice(folder: Path, choice: str) -> dict[str, Any]:
    """A run, and one that goes on from its checkpoint."""
    folder.mkdir(exist_ok=True)
    options = (*OPTIONS, f"trainer/communication={choice}")
    whole, trainer = trained(folder / "whole", *options, extra=[KeepAll(folder)])
    callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    dist.barrier()
    resumed, _ = trained(folder / "resumed", *options, ckpt_path=folder / f"{RESUMED_FROM}.ckpt")
    without_callbacks = {"callbacks": None}
    return {
        "causes": next(callback.causes for callback in callbacks if type(callback).__name__ == "EquivalenceReport"),
        "differences": differences(whole | without_callbacks, resumed | without_callbacks),
        "weights": resumed["state_dict"],
    }


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_run_goes_on_to_the_bit(choice: str, results: list[dict[str, Any]]) -> None:
    assert [rank[choice]["differences"] for rank in results] == [[], []]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_claim_of_exactness_is_withdrawn(choice: str, results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert f"trainer.strategy.communication={choice}: gradients are sent in fewer bits" in rank[choice]["causes"]
    assert differences(*(rank[choice]["weights"] for rank in results)) == []
