"""The gradient noise scale of one process: against a closed form, batch by batch against single gradients, and out of the way."""

import json
import logging
from pathlib import Path
from typing import Any

import linear_gradients as linear
import pytest
import torch
from bitwise import differences
from faults import Poison
from in_process import KeepAll, logged, prepared, trained
from lightning import LightningModule
from torch import Tensor
from unwatched import unwatched

from lockstep.extras.noise_scale.noise_scale import NoiseScale, Smoothed
from lockstep.runs.results import collect_facts

EVERY = ("callbacks=noise_scale", "callbacks.noise_scale.every_n_steps=1", "callbacks.noise_scale.every_n_steps_alone=1")


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 400), (4, 150)])
def test_that_of_a_linear_regression_is_the_one_known_in_closed_form(accumulate: int, steps: int, tmp_path: Path) -> None:
    batches = ("datamodule.global_batch_size=64", f"trainer.accumulate_grad_batches={accumulate}")
    scale = linear.fitted(tmp_path, 64 * steps, *batches)
    gradient, trace = linear.in_closed_form()
    result = scale.facts()
    assert result["noise_scale_estimates"] == steps
    assert result["noise_scale"] == pytest.approx(trace / gradient, rel=0.1)
    assert result["noise_scale_gradient_squared"] == pytest.approx(gradient, rel=0.1)
    assert result["noise_scale_trace"] == pytest.approx(trace, rel=0.1)


def estimate_from(parts: list[Tensor]) -> tuple[float, float]:
    """The unbiased estimates of |G|^2 and tr(Sigma) from parts of a step, (n, 7) each: a one-way analysis of variance."""
    every = torch.cat(parts).mean(dim=0)
    between = sum(len(part) * (part.mean(dim=0) - every).square().sum().item() for part in parts) / (len(parts) - 1)
    return every.square().sum().item() - between / sum(map(len, parts)), between


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        # 11 samples: two steps of 4, one of 3; each in halves
        (("datamodule.batch_size=4",), [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9, 10]]]),
        # a step of 3 batches of 2, and one of the 5 that are left
        (("datamodule.batch_size=2", "trainer.accumulate_grad_batches=3"), [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10]]]),
    ],
    ids=["halves", "accumulated"],
)
def test_each_step_gives_the_estimates_of_its_parts(
    options: tuple[str, ...], steps: list[list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = []
    monkeypatch.setattr(Smoothed, "add", lambda *arguments: result.append(arguments[1:3]))
    linear.fitted(tmp_path, 11, "datamodule.shuffle=false", "datamodule.drop_last=false", *options)
    samples = linear.data(11)
    expected = [estimate_from([linear.gradients(samples, torch.tensor(ids)) for ids in parts]) for parts in steps]
    assert [value for pair in result for value in pair] == pytest.approx([value for pair in expected for value in pair], rel=1e-9)


def test_smoothed_values_do_not_lean_towards_zero_and_are_divided_last() -> None:
    smoothed = Smoothed()
    assert smoothed.ratio is None
    smoothed.add(gradient=-1.0, trace=8.0, decay=0.5)
    assert smoothed.ratio is None  # |G|^2 is not told from zero yet
    smoothed.add(gradient=3.0, trace=2.0, decay=0.5)
    # weights 1/4 and 1/2: |G|^2 (-1/4 + 3/2) / (3/4), tr(Sigma) (8/4 + 2/2) / (3/4)
    assert (smoothed.gradient / smoothed.weight, smoothed.trace / smoothed.weight) == pytest.approx((5 / 3, 4))
    assert smoothed.ratio == pytest.approx(2.4)
    assert (smoothed.estimates, smoothed.ratios, smoothed.total) == (2, 1, pytest.approx(2.4))


@pytest.mark.parametrize(
    ("options", "estimates"),
    [
        (("model=mlp", "model.net.dropout=0.2", "trainer.gradient_clip_val=0.1"), 8),
        # the third step of an epoch is a single batch
        (("model=cnn", "model.net.width=4", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2"), 4),
    ],
    ids=["halves", "accumulated"],
)
def test_training_is_the_same_to_the_bit(options: tuple[str, ...], estimates: int, tmp_path: Path) -> None:
    nowhere = {"callbacks": None}
    plain, _ = trained(tmp_path / "plain", *options, "trainer.max_epochs=2")
    watched, trainer = trained(tmp_path / "watched", *options, *EVERY, "trainer.max_epochs=2")
    assert not differences(plain | nowhere, watched | nowhere)
    assert collect_facts(trainer)["noise_scale_estimates"] == estimates
    assert collect_facts(trainer)["noise_scale"] > 0


def test_a_run_continued_goes_on_with_its_estimate(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    whole, _ = trained(tmp_path, *EVERY, "trainer.max_epochs=2", extra=[KeepAll(kept)])
    log = logged(tmp_path)
    assert len({step for step, name in log if name == "noise_scale"}) >= 4
    again, _ = trained(tmp_path, *EVERY, "trainer.max_epochs=2", ckpt_path=kept / "5.ckpt")
    assert not differences(whole, again)
    assert logged(tmp_path) == log


def test_a_step_left_out_is_not_looked_at(tmp_path: Path) -> None:
    options = (*EVERY, "guards.nonfinite.action=skip", "trainer.max_epochs=1")
    _, trainer = trained(tmp_path, *options, extra=[Poison(batches=(1,))])
    facts = collect_facts(trainer)
    assert facts["noise_scale_estimates"] == trainer.global_step - 1
    assert facts["noise_scale"] > 0


class ByHand(LightningModule):
    automatic_optimization = False  # pyright: ignore[reportAssignmentType]


def test_what_can_not_be_measured_says_why_and_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, model, trainer = prepared(tmp_path)
    callback = NoiseScale()
    strange: Any = ByHand()
    reasons = {strange: "ByHand optimizes by hand", model: "a compiled net can't be passed backward twice"}
    for module, reason in reasons.items():
        model.net.compile()
        with caplog.at_level(logging.WARNING, "lockstep.extras.noise_scale.noise_scale"):
            callback.on_train_start(trainer, module)
        assert caplog.messages[-1].startswith(f"callbacks.noise_scale: no noise scale is estimated: {reason}")
        callback.on_train_batch_start(trainer, module, None, 0)
        callback.on_before_backward(trainer, module, torch.zeros(()))
        callback.on_after_backward(trainer, module)
        callback.on_before_optimizer_step(trainer, module, None)
    assert json.dumps(callback.facts()).count("null") == 4


@pytest.mark.parametrize("kind", [NoiseScale])
def test_it_is_watched_in_all_its_hooks(kind: type) -> None:
    assert unwatched(kind) == []
