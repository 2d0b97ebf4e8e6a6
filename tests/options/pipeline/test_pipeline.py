"""Models in stages: the result of one process, one plain checkpoint of it all, and resumption to the bit and elsewhere."""

import math
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from commands import train
from in_parts import NOWHERE, Watched, assert_equal, stopped
from in_process import last, trained
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from omegaconf import DictConfig
from ranks import in_ranks
from torch import Tensor, nn

from lockstep.build import build_trainer
from lockstep.config.plan import Plan
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.schedules import constant
from lockstep.nets import Dropout
from lockstep.parity.trainings import Sides
from lockstep.runs.composition import compose as compose_of
from lockstep.runs.results import logged_numbers
from lockstep.strategies.pipeline.pipeline import check_model


class Residual(nn.Module):
    stage_ends = (("embed",), ("head",))

    def __init__(self, input_shape: Sequence[int], num_outputs: int, width: int = 8, depth: int = 4, p: float = 0.3) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh(), Dropout(p)) for _ in range(depth))
        self.head = nn.Linear(width, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stage(inputs, None, range(len(self.layers)))

    def stage(self, inputs: Tensor, x: Tensor | None, layers: range) -> Tensor:
        hidden: Tensor = self.embed(inputs) if x is None else x
        for number in layers:
            hidden = hidden + self.layers[number](hidden)
        return self.head(hidden) if layers.stop == len(self.layers) else hidden


STAGES = ("trainer=pipeline", "trainer.accelerator=cpu")


def classifier(net: nn.Module) -> Classifier:
    parts = {"optimizer": partial(torch.optim.SGD, lr=0.1), "lr_scheduler": constant, "metrics": ("loss",)}
    return Classifier(net=net, spec=DataSpec((4,), 3), **parts)


def test_stages_share_samples(compose: Callable[..., DictConfig]) -> None:
    plan = Plan.from_config(compose(*STAGES, "trainer.strategy.stages=3", "datamodule.global_batch_size=48"))
    assert (plan.devices, plan.world_size, plan.data_parallel_size, plan.batch_size) == (3, 3, 1, 48)
    cfg = compose(*STAGES, "trainer.devices=4")
    with pytest.raises(ConfigError, match=r"^trainer.strategy.stages=2: is not the number of processes; use 4, or trainer.dev"):
        build_trainer(cfg, Plan.from_config(cfg))


def test_parity_does_not_compare_stages() -> None:
    target = "lockstep.strategies.pipeline.pipeline.Pipeline"
    with pytest.raises(ConfigError, match=rf"^trainer\.strategy\._target_={target}: leaves each process the gradients"):
        Sides.of(compose_of(*STAGES, config_name="parity"))


def test_nets_that_can_not_be_cut_are_refused() -> None:
    norm, scale, frozen = Residual((4,), 3), Residual((4,), 3), Residual((4,), 3)
    norm.layers[2], scale.scale = nn.BatchNorm1d(8), nn.Parameter(torch.ones(()))
    frozen.layers[2].requires_grad_(False)
    check_model(classifier(frozen), 2)
    for model, stages, said in (
        (classifier(norm), 2, "model.net._target_=Residual: layers.2 would have the statistics of a micro-batch"),
        (classifier(scale), 2, "model.net._target_=Residual: net.scale is in no stage; use"),
        (classifier(frozen), 9, "trainer.strategy.stages=9: stage 1 has nothing to train; use fewer"),
        (classifier(frozen), 4, "trainer.strategy.stages=4: stage 2 has nothing to train; use fewer"),
        (classifier(nn.Linear(4, 3)), 2, "model.net._target_=Linear: has no layers, stage"),
        (BoringModel(), 2, "model._target_=BoringModel: has no net and no optimizer"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_model(model, stages)
        assert str(refused.value).startswith(said)


language_models = pytest.importorskip("language_models")

PIPELINE = ("trainer/strategy=pipeline",)
EXACT = ("trainer.precision=64-true", "trainer.max_epochs=2", "datamodule.drop_last=false", "trainer.gradient_clip_val=0.5")
EXACT += ("++callbacks.progress=null", "++callbacks.pictures=null", "guards.preemption.every_n_steps=1")
# 11 documents in windows: steps of 7 of them and a last one of fewer, in micro-batches that do not divide them
GPT = ("model=gpt_nano", "model.net.width=16", "model.net.heads=2", "model.net.depth=4", "model/optimizer=adamw")
GPT += ("optimized_metric=val/loss", "optimized_mode=min", "datamodule.global_batch_size=7", *EXACT)
GPT += ("guards.checkpoint.every_n_steps=null", "guards.nonfinite.action=skip")
IMAGES = ("datamodule=synthetic_images", "datamodule.num_classes=3", "datamodule.length=21", "datamodule.val_length=9")
# 21 samples by steps of 20, accumulated in two batches
OWN = (*IMAGES, "datamodule.shape=[1,4,4]", "datamodule.global_batch_size=20", "trainer.accumulate_grad_batches=2", *EXACT)
OWN += ("model.net._target_=test_pipeline.Residual", "~model.net.hidden", "~model.net.dropout", "model/optimizer=adamw")
OWN += ("+model.torchmetrics.f1._target_=torchmetrics.classification.MulticlassF1Score", "+model.torchmetrics.f1.num_classes=3")
SKIPPED, STOPPED_AT = 2, 4


class Spoilt(Callback):
    """Makes one gradient of the last stage NaN, once: the others' are finite."""

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weight: Any = pl_module.get_parameter("net.norm.weight")
        if trainer.global_step == SKIPPED and weight.grad is not None:
            weight.grad[0] = float("nan")


def check_two(rank: int, world_size: int, folder: Path, gpt: tuple[str, ...]) -> dict[str, Any]:
    split = (*gpt, *PIPELINE, "trainer.devices=2")
    whole, trainer = trained(folder / "gpt", *split, extra=[watched := Watched(), Spoilt()])
    number = stopped(folder / "stopped", STOPPED_AT, *split, fault=Spoilt())
    dist.barrier()
    left = folder / "stopped" / "checkpoints" / "last.ckpt"
    resumed, _ = trained(folder / "stopped", *split, extra=[Spoilt()], ckpt_path=left)
    return {
        "gpt": whole,
        "results": logged_numbers(trainer),
        "skipped": [callback.skipped_step for callback in trainer.callbacks if hasattr(callback, "skipped_step")],
        "held": watched.held,
        "number": number,
        "resumed": differences(whole | NOWHERE, resumed | NOWHERE),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def gpt(folder: Path) -> tuple[str, ...]:
    return (*GPT, *language_models.texts(folder))


@pytest.fixture(scope="module")
def of_two(folder: Path, gpt: tuple[str, ...]) -> list[dict[str, Any]]:
    """The measurements of each of two stages: one group for all tests of this file."""
    return in_ranks(2, partial(check_two, folder=folder, gpt=gpt), folder)


@pytest.mark.slow
def test_two_stages_give_the_result_of_one_process(of_two: list[dict[str, Any]], gpt: tuple[str, ...], tmp_path: Path) -> None:
    """With clipping by the norm of all stages, tied weights, and a step that all stages leave out."""
    assert [rank["skipped"] for rank in of_two] == [[SKIPPED], [SKIPPED]]
    assert_equal(of_two[0]["gpt"], one := trained(tmp_path, *gpt, extra=[Spoilt()])[0])
    assert of_two[0]["gpt"]["metrics"] == pytest.approx(one["metrics"], abs=1e-10)
    assert of_two[0]["results"] == of_two[1]["results"]


@pytest.mark.slow
def test_each_stage_has_its_layers_alone(of_two: list[dict[str, Any]]) -> None:
    tied = 257 * 16  # the embedding, which is the head too
    for name in ("weights", "optimizer"):
        held = [rank["held"][name] for rank in of_two]
        assert sum(held) == of_two[0]["held"]["whole"] + tied
        assert max(held) < 0.6 * sum(held)


@pytest.mark.slow
def test_preempted_stages_go_on_to_the_bit(of_two: list[dict[str, Any]]) -> None:
    assert [(rank["number"], rank["resumed"]) for rank in of_two] == [(signal.SIGTERM, [])] * 2


@pytest.mark.slow
def test_one_process_goes_on_with_what_stages_have_begun(
    of_two: list[dict[str, Any]], gpt: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    left = folder / "gpt" / "checkpoints" / "previous.ckpt"
    assert_equal(trained(tmp_path, *gpt, extra=[Spoilt()], ckpt_path=left)[0], of_two[0]["gpt"])


def check_four(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    four = (*PIPELINE, "trainer.devices=4", "trainer.strategy.stages=4", "trainer.strategy.microbatches=2")
    own, trainer = trained(folder / "own", *OWN, *four)
    return {"own": own, "results": logged_numbers(trainer)}


@pytest.mark.slow
def test_four_stages_of_an_own_net_give_the_result_of_one_process(tmp_path: Path) -> None:
    """With counted dropout and accumulation."""
    of_four = in_ranks(4, partial(check_four, folder=tmp_path), tmp_path)
    assert_equal(of_four[0]["own"], one := trained(tmp_path / "one", *OWN)[0])
    assert of_four[0]["own"]["metrics"] == pytest.approx(one["metrics"], abs=1e-10)
    assert all(rank["results"] == of_four[0]["results"] for rank in of_four)


# the bias of attention's keys has no gradient but rounding, of which Adam makes steps
VIT = (*IMAGES, "datamodule.shape=[1,8,8]", "model=vit", "model.net.width=16", "model.net.heads=2", "model.net.depth=3", *EXACT)
VIT += ("model/optimizer=sgd", "datamodule.global_batch_size=12", "model/lr_scheduler=constant")
VIT += ("guards.checkpoint.every_n_steps=1", "logger=csv")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_another_number_of_stages(tmp_path: Path) -> None:
    killed = "+callbacks.fault={_target_:faults.Fault,rank:1,how:kill,batch:1,epoch:1,once:true}"
    train("trainer=pipeline", "trainer.strategy.stages=2", *VIT, killed, "hydra.run.dir=run", cwd=tmp_path, code=1)
    assert 2 <= last(tmp_path / "run")["global_step"] <= 3  # of four
    train("resume=run", "trainer.strategy.stages=3", cwd=tmp_path, code=0)
    assert "3 CPU processes, 3 with the same samples, Pipeline over gloo" in (tmp_path / "run" / "train.log").read_text()
    assert_equal(last(tmp_path / "run"), trained(tmp_path / "one", *VIT)[0])


@pytest.mark.slow
def test_what_stages_can_not_compute_is_refused_in_one_line(tmp_path: Path) -> None:
    done = train("trainer=pipeline", "trainer.strategy.stages=2", "model=vit", "callbacks=ema", cwd=tmp_path, code=2)
    assert "callbacks.ema=...: a pipeline has no average of its weights; use" in done.stderr.splitlines()[-1]
