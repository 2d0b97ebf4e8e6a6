"""The gradient noise scale from real processes' gradients: that of the closed form, exact in an uneven tail, out of the way."""

from functools import partial
from pathlib import Path
from typing import Any

import linear_gradients as linear
import pytest
import torch
from bitwise import differences
from in_process import become_rank, trained
from ranks import in_ranks

from lockstep.extras.noise_scale.noise_scale import NoiseScale, Smoothed
from lockstep.runs.results import collect_facts

pytestmark = pytest.mark.slow
EVERY = ("callbacks=noise_scale", "callbacks.noise_scale.every_n_steps=1")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank has measured: one group for all tests of this file."""
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(2, partial(check_all, folder=folder), folder)


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    devices = f"trainer.devices={world_size}"
    steps = 400 // world_size  # of more parts fewer tell as much
    return {
        "facts": linear.fitted(folder / "fitted", 64 * steps, devices, "datamodule.global_batch_size=64").facts(),
        "steps": steps_of_a_tail(folder / "tail", devices, f"datamodule.global_batch_size={4 * world_size}"),
        "differences": differences_it_makes(folder, devices),
        "failed": fail_in_one_process(rank, folder / "failed"),
    }


def fail_in_one_process(rank: int, folder: Path) -> tuple[bool, bool, int]:
    """Of a NoiseScale that fails on rank 1 in its third step: is it off, do all know it, and how many estimates has it made?"""
    keep, calls = NoiseScale._own_rows, []

    def fail(self: NoiseScale, *arguments: Any) -> Any:
        calls.append(arguments)
        if rank == 1 and len(calls) == 3:
            raise RuntimeError("out of memory, say")
        return keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseScale, "_own_rows", fail)
        scale = linear.fitted(folder, 64, "trainer.devices=2", "datamodule.global_batch_size=8")
    return scale.is_off, scale._is_off_everywhere, scale.smoothed.estimates


def steps_of_a_tail(folder: Path, *options: str) -> list[tuple[float, float]]:
    """Estimates of 19 samples in order, in steps of two batches a process; some have none of the last."""
    steps: list[tuple[float, float]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Smoothed, "add", lambda *arguments: steps.append(arguments[1:3]))
        order = ("datamodule.shuffle=false", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2")
        linear.fitted(folder, 19, *order, *options)
    return steps


def differences_it_makes(folder: Path, devices: str) -> list[str]:
    options = ("model=cnn", "model.net.width=4", "datamodule.drop_last=false", "trainer.max_epochs=1", devices)
    plain, _ = trained(folder / "plain", *options)
    watched, trainer = trained(folder / "watched", *options, *EVERY)
    assert collect_facts(trainer)["noise_scale_estimates"] > 1
    return differences(plain | {"callbacks": None}, watched | {"callbacks": None})


def test_that_of_a_linear_regression_is_the_one_known_in_closed_form(results: list[dict[str, Any]]) -> None:
    gradient, trace = linear.in_closed_form()
    assert all(rank["facts"] == results[0]["facts"] for rank in results)
    assert results[0]["facts"]["noise_scale"] == pytest.approx(trace / gradient, rel=0.1)
    assert results[0]["facts"]["noise_scale_gradient_squared"] == pytest.approx(gradient, rel=0.1)
    assert results[0]["facts"]["noise_scale_trace"] == pytest.approx(trace, rel=0.1)


def test_each_step_gives_the_estimates_of_its_parts(results: list[dict[str, Any]]) -> None:
    """Micro-batch k is the k-th slice of 2 * world size samples; rank r has every world-size-th of it, from the r-th on."""
    world_size, samples = len(results), linear.data(19)
    every = linear.gradients(samples, torch.arange(19))
    expected = []
    for step in torch.arange(19).split(4 * world_size):
        batches = step.split(2 * world_size)
        parts = [every[ids] for batch in batches for rank in range(world_size) if len(ids := batch[rank::world_size])]
        mean = every[step].mean(dim=0)
        trace = sum(len(part) * (part.mean(dim=0) - mean).square().sum().item() for part in parts) / (len(parts) - 1)
        expected.append((mean.square().sum().item() - trace / len(step), trace))
    assert len(expected) == 3
    for rank in results:
        assert [value for pair in rank["steps"] for value in pair] == pytest.approx(
            [value for pair in expected for value in pair], rel=1e-9
        )


def test_training_is_the_same_to_the_bit(results: list[dict[str, Any]]) -> None:
    assert [rank["differences"] for rank in results] == [[]] * len(results)


def test_one_that_fails_in_one_process_is_off_in_all(results: list[dict[str, Any]]) -> None:
    assert [rank["failed"] for rank in results] == [(True, True, 2)] * 2
