"""What is sent in the place of whole gradients: the published algorithms, resumed to the bit, and said to be inexact."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from capabilities import requires
from in_process import BARE, KeepAll, become_rank, last, prepared, trained
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.checkpointing import read_checkpoint
from lockstep.extras.compression.communication import HalfPrecision, PowerSGD
from lockstep.extras.compression.strategy import Communication

pytestmark = [pytest.mark.slow, requires("noise_scale")]
OPTIONS = ("trainer.devices=2", "datamodule.batch_size=150", "trainer.max_epochs=2", "model.net.dropout=0.2")
EARLY = ("trainer.strategy.communication.start=2",)
CHOICES = {"bf16": (), "power_sgd": EARLY, "local_sgd": (*EARLY, "trainer.strategy.communication.period=3")}
RESUMED_FROM = 6  # steps: the second of a second epoch, with weights that differ between the ranks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has measured: one group for all tests of this file."""
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(2, partial(check_all, folder=folder), folder)


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    kinds: dict[str, Communication] = {dtype: HalfPrecision(dtype) for dtype in ("float16", "bfloat16")}
    kinds["power"] = PowerSGD(rank=1, start=1)
    gradients = {name: communicate(kind, rank) for name, kind in kinds.items()}
    return {"gradients": gradients, "ended": never_met(folder)} | {
        choice: run_twice(folder / choice, choice, options) for choice, options in CHOICES.items()
    }


def communicate(communication: Communication, rank: int) -> list[dict[str, Tensor]]:
    """Of four steps, the third of which is not finite on rank one: the rank's own, and what comes of all."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 5).double()
    model = DistributedDataParallel(layer)
    communication.register(model)
    steps = []
    for step in range(4):
        inputs = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))
        inputs[0] += float("nan") if (step, rank) == (2, 1) else 0
        own, bias = torch.autograd.grad(layer(inputs).tanh().sum(), [layer.weight, layer.bias])
        model.zero_grad()
        model(inputs).tanh().sum().backward()
        steps.append(
            {"own": own, "own bias": bias, "common": read_gradient(layer.weight), "common bias": read_gradient(layer.bias)}
        )
    return steps


def read_gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


class Weights(Callback):
    """One number of a rank's weights, after each step and at the end of each validation."""

    def __init__(self) -> None:
        self.after_steps: list[float] = []
        self.after_validations: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.after_steps.append(sum(float(p.double().square().sum()) for p in pl_module.parameters()))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.after_validations.append(sum(float(p.double().square().sum()) for p in pl_module.parameters()))


def run_twice(folder: Path, choice: str, options: tuple[str, ...]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    options = (*OPTIONS, f"trainer/communication={choice}", "callbacks=noise_scale", *options)
    weights = Weights()
    whole, trainer = trained(folder / "whole", *options, extra=[KeepAll(folder), weights])
    callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    dist.barrier()
    resumed, _ = trained(folder / "resumed", *options, ckpt_path=folder / f"{RESUMED_FROM}.ckpt")
    without_callbacks = {"callbacks": None}
    return {
        "causes": next(callback.causes for callback in callbacks if type(callback).__name__ == "EquivalenceReport"),
        "estimates": next(c.facts()["noise_scale_estimates"] for c in callbacks if type(c).__name__ == "NoiseScale"),
        "differences": differences(whole | without_callbacks, resumed | without_callbacks),
        "after_steps": weights.after_steps,
        "after_validations": weights.after_validations,
        "checkpoint": read_checkpoint("kept", folder / f"{RESUMED_FROM}.ckpt") if choice == "local_sgd" else None,
    }


def never_met(folder: Path) -> dict[str, Any]:
    """Three local steps and no validation: the last checkpoint and the model in memory."""
    options = (*OPTIONS, "trainer.max_epochs=1", "trainer.limit_val_batches=0", "optimized_metric=train/loss")
    local = ("trainer/communication=local_sgd", "trainer.strategy.communication.start=1")
    datamodule, model, trainer = prepared(folder / "ended", *options, *local, base=BARE)
    trainer.fit(model, datamodule)
    return {"last": last(folder / "ended"), "model": dict(model.state_dict())}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_adds_up_rounded_gradients(dtype: str, results: list[dict[str, Any]]) -> None:
    kind = getattr(torch, dtype)
    for number, (step, other) in enumerate(zip(*(rank["gradients"][dtype] for rank in results), strict=True)):
        expected = (step["own"].to(kind) / 2 + other["own"].to(kind) / 2).double()
        assert all(torch.allclose(one["common"], expected, rtol=0, atol=0, equal_nan=True) for one in (step, other))
        assert (step["own"].isnan().any(), other["own"].isnan().any()) == (False, number == 2)  # else it would tell nothing


def test_power_sgd_sends_the_published_approximation_and_what_it_missed_later(results: list[dict[str, Any]]) -> None:
    """Vogels et al. 2019, algorithms 1 and 2, with the factor of each step as the guess of the next."""
    ranks = [rank["gradients"]["power"] for rank in results]
    first, *later = zip(*ranks, strict=True)
    assert torch.allclose(first[0]["common"], (first[0]["own"] + first[1]["own"]) / 2, rtol=1e-12)  # before its start
    errors = [torch.zeros(5, 6, dtype=torch.float64) for _ in ranks]
    power = PowerSGD(rank=1)
    power._names = {torch.empty(0): "weight"}
    guess = power._right("weight", torch.zeros(5, 6, dtype=torch.float64))
    for step, pair in enumerate(later):
        assert torch.allclose(pair[0]["common bias"], (pair[0]["own bias"] + pair[1]["own bias"]) / 2, equal_nan=True)
        if step == 1:
            assert pair[0]["common"].isnan().any()
            continue  # it is as if the step had not been there
        matrices = [one["own"] + error for one, error in zip(pair, errors, strict=True)]
        mean = (matrices[0] + matrices[1]) / 2
        left = mean @ guess / (mean @ guess).norm()
        guess = mean.T @ left
        sent = left @ guess.T
        errors = [matrix - sent for matrix in matrices]
        assert all(torch.allclose(one["common"], sent, rtol=1e-9, atol=1e-12) for one in pair)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_run_goes_on_to_the_bit(choice: str, results: list[dict[str, Any]]) -> None:
    assert [rank[choice]["differences"] for rank in results] == [[], []]


def test_weights_are_averaged_when_they_are_said_to_be(results: list[dict[str, Any]]) -> None:
    one, other = (rank["local_sgd"] for rank in results)
    assert [a == b for a, b in zip(one["after_steps"], other["after_steps"], strict=True)] == [
        *(True, True),  # before it starts
        *(False, False, True, False, False, True),  # steps 2 to 7, averaged every three
    ]
    assert one["after_validations"] == other["after_validations"]


def test_what_is_tested_after_training_is_one_model(results: list[dict[str, Any]]) -> None:
    one, other = (rank["ended"] for rank in results)
    assert differences(one["model"], other["model"]) == []
    assert differences(one["model"], one["last"]["state_dict"]) == []
    ranks = [rank["state_dict"] for rank in one["last"]["communication"]]  # what a longer run goes on from
    assert differences(*ranks)


def test_a_checkpoint_of_local_steps_has_the_mean_of_the_weights(results: list[dict[str, Any]]) -> None:
    checkpoint = results[0]["local_sgd"]["checkpoint"]
    ranks = [rank["state_dict"] for rank in checkpoint["communication"]]
    names = [name for name, tensor in checkpoint["state_dict"].items() if tensor.is_floating_point()]
    assert any(not torch.equal(ranks[0][name], ranks[1][name]) for name in names)
    assert all(torch.allclose(checkpoint["state_dict"][name], (ranks[0][name] + ranks[1][name]) / 2) for name in names)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_claim_of_exactness_is_withdrawn_and_no_noise_scale_told(choice: str, results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert [cause for cause in rank[choice]["causes"] if cause.startswith("trainer.strategy.communication: ")]
        assert rank[choice]["estimates"] == 0


def test_on_another_number_of_processes_what_was_not_sent_is_not_lost() -> None:
    ranks = [{"steps": 7, "rights": {"a": torch.ones(2, 1)}, "errors": {"a": torch.full((2, 2), float(i))}} for i in range(4)]
    states = []
    for rank in range(2):
        power = PowerSGD(rank=1)
        power.load({}, ranks, rank, world_size=2)
        states.append(power.errors["a"])
    assert torch.equal(sum(states) / 2, torch.full((2, 2), 1.5))  # the mean of 0 to 3
