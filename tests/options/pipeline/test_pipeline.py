"""Models in stages: the result of one process, one plain checkpoint of it all, and resumption to the bit and elsewhere."""

import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from in_parts import furthest
from in_process import become_rank, last, prepared, trained
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks

from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.models.from_checkpoint import load_model
from lockstep.runs.results import logged_numbers

pytestmark = pytest.mark.slow
language_models = pytest.importorskip("language_models")

PIPELINE = ("trainer/strategy=pipeline",)
EXACT = ("trainer.precision=64-true", "trainer.max_epochs=2", "datamodule.drop_last=false", "trainer.gradient_clip_val=0.5")
EXACT += ("++callbacks.progress=null", "++callbacks.pictures=null", "guards.preemption.every_n_steps=1")
EXACT += ("guards.checkpoint.every_n_steps=null",)  # but at each epoch's end
KEPT = ("guards.nonfinite.action=skip",)
# 11 documents in windows: steps of 7 of them and a last one of fewer, in micro-batches that do not divide them
GPT = ("model=gpt_nano", "model.net.width=16", "model.net.heads=2", "model.net.depth=4", "model/optimizer=adamw")
GPT += ("optimized_metric=val/loss", "optimized_mode=min", "datamodule.global_batch_size=7", *EXACT, *KEPT)
# 21 samples by steps of 20, accumulated in two batches
OWN = ("datamodule=synthetic_images", "datamodule.shape=[1,4,4]", "datamodule.num_classes=3", "datamodule.length=21")
OWN += ("model.net._target_=stage_net.Residual", "~model.net.hidden", "~model.net.dropout", "trainer.accumulate_grad_batches=2")
OWN += ("datamodule.val_length=9", "datamodule.test_length=4", "datamodule.global_batch_size=20", "model/optimizer=adamw", *EXACT)
OWN += ("+model.torchmetrics.f1._target_=torchmetrics.classification.MulticlassF1Score",)
NOWHERE = {"callbacks": None}  # which say where the best checkpoint is
SKIPPED, STOPPED_AT = 2, 4


class Spoilt(Callback):
    """Makes one gradient of the last stage NaN, once: the others' are finite."""

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weight: Any = pl_module.get_parameter("net.norm.weight")
        if trainer.global_step == SKIPPED and weight.grad is not None:
            weight.grad[0] = float("nan")


class Watched(Callback):
    """How many numbers this process has at the end; asks to stop after so many steps, where that is given."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.held = stop_at, {"all": 0, "weights": 0, "optimizer": 0}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.stop_at and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        parameters = list(pl_module.parameters())
        self.held["all"] = sum(parameter.numel() for parameter in parameters)
        self.held["weights"] = sum(parameter.untyped_storage().nbytes() // 8 for parameter in parameters if not parameter.is_meta)
        self.held["optimizer"] = sum(state["exp_avg"].numel() for state in trainer.optimizers[0].state.values())


def stopped(folder: Path, *options: str, extra: list[Callback]) -> int:
    """The signal by which a training is preempted."""
    datamodule, model, trainer = prepared(folder, *options, extra=[Watched(STOPPED_AT), *extra])
    STOP_SIGNALS.listen()
    try:
        trainer.fit(model, datamodule)
    except Preempted as error:
        return error.number
    finally:
        STOP_SIGNALS.stop_listening()
    return 0


def assert_equal(own: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Checkpoints of two trainings, up to the rounding of float64."""
    assert own["global_step"] == expected["global_step"]
    assert furthest(own["state_dict"], expected["state_dict"]) < 1e-10
    states = [content["optimizer_states"][0]["state"] for content in (own, expected)]
    assert list(states[0]) == list(states[1])
    assert furthest(*states) < 1e-10
    assert own["metrics"] == pytest.approx(expected["metrics"], abs=1e-10)


def check_two(rank: int, world_size: int, folder: Path, gpt: tuple[str, ...]) -> dict[str, Any]:
    become_rank(rank, world_size)
    split = (*PIPELINE, "trainer.devices=2")
    watched = Watched()
    whole, trainer = trained(folder / "gpt", *gpt, *split, extra=[watched, Spoilt()])
    number = stopped(folder / "stopped", *gpt, *split, extra=[Spoilt()])
    dist.barrier()
    left = folder / "stopped" / "checkpoints" / "last.ckpt"
    resumed, tester = trained(folder / "stopped", *gpt, *split, extra=[Spoilt()], ckpt_path=left)
    model: Any = tester.lightning_module
    best = folder / "stopped" / "checkpoints" / "best.ckpt"
    return {
        "gpt": whole,
        "previous": str(folder / "gpt" / "checkpoints" / "previous.ckpt"),
        "results": logged_numbers(tester),
        "skipped": [callback.skipped_step for callback in trainer.callbacks if hasattr(callback, "skipped_step")],
        "held": watched.held,
        "number": number,
        "resumed": differences(whole | NOWHERE, resumed | NOWHERE),
        "tested": tester.test(model, tester.datamodule, ckpt_path=str(best), verbose=False),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def gpt(folder: Path) -> tuple[str, ...]:
    return (*GPT, *language_models.texts(folder))


@pytest.fixture(scope="module")
def of_two(folder: Path, gpt: tuple[str, ...]) -> list[dict[str, Any]]:
    """What each of two stages has measured: one group for all tests of this file."""
    return in_ranks(2, partial(check_two, folder=folder, gpt=gpt), folder)


@pytest.fixture(scope="module")
def one(folder: Path, gpt: tuple[str, ...], of_two: list[dict[str, Any]]) -> dict[str, Any]:
    """The same on one process, and what that makes of what two stages have begun."""
    left = Path(of_two[0]["previous"])
    return {
        "gpt": trained(folder / "one", *gpt, extra=[Spoilt()])[0],
        "from stages": trained(folder / "one from stages", *gpt, extra=[Spoilt()], ckpt_path=left)[0],
    }


def test_two_stages_give_the_result_of_one_process(of_two: list[dict[str, Any]], one: dict[str, Any]) -> None:
    """With clipping by the norm of all stages, tied weights, and a step that all stages leave out."""
    assert [rank["skipped"] for rank in of_two] == [[SKIPPED], [SKIPPED]]
    assert_equal(of_two[0]["gpt"], one["gpt"])
    assert of_two[0]["results"] == of_two[1]["results"]


def test_each_stage_has_its_layers_alone(of_two: list[dict[str, Any]]) -> None:
    tied = 257 * 16  # the embedding, which is the head too
    for name in ("weights", "optimizer"):
        held = [rank["held"][name] for rank in of_two]
        assert sum(held) == of_two[0]["held"]["all"] + tied
        assert max(held) < 0.6 * sum(held)


def test_preempted_stages_go_on_to_the_bit(of_two: list[dict[str, Any]]) -> None:
    assert [(rank["number"], rank["resumed"]) for rank in of_two] == [(signal.SIGTERM, [])] * 2


def test_one_process_goes_on_with_what_stages_have_begun(of_two: list[dict[str, Any]], one: dict[str, Any]) -> None:
    assert_equal(one["from stages"], of_two[0]["gpt"])


def test_a_checkpoint_is_read_as_any_other(of_two: list[dict[str, Any]], folder: Path) -> None:
    path = folder / "gpt" / "checkpoints" / "last.ckpt"
    saved = last(folder / "gpt")["state_dict"]
    single = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in saved.items()}
    assert differences(dict(load_model(path).state_dict()), single) == []
    assert of_two[0]["tested"] == of_two[1]["tested"]
    assert of_two[0]["tested"][0]["test/loss"] > 0


def check_four(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    four = (*PIPELINE, "trainer.devices=4", "trainer.strategy.stages=4", "trainer.strategy.microbatches=2")
    own, trainer = trained(folder / "own", *OWN, *four)
    return {"own": own, "results": logged_numbers(trainer)}


def test_four_stages_of_an_own_net_give_the_result_of_one_process(tmp_path: Path) -> None:
    """With counted dropout and accumulation."""
    of_four = in_ranks(4, partial(check_four, folder=tmp_path), tmp_path)
    assert_equal(of_four[0]["own"], trained(tmp_path / "one", *OWN)[0])
    assert all(rank["results"] == of_four[0]["results"] for rank in of_four)
