"""Models in parts: what can't be, what one step does, one plain checkpoint of it all, and resumption to the bit and elsewhere."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from in_parts import NOWHERE, Watched, assert_equal, furthest, poison, stopped
from in_process import last, trained
from omegaconf import DictConfig
from ranks import in_ranks
from torch import nn

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.strategies.sharding.model_parallel import ModelParallel, _units

BLOCKS = r"(^|\.)\d+$"


class Model(nn.Module):
    """As a LightningModule is, of which no forward is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = nn.Sequential()
        self.net.embedding, self.net.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)


def test_a_parameter_of_the_model_itself_is_refused() -> None:
    model = Model()
    model.temperature = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match=r"^trainer.strategy._target_=\S+: temperature is in no layer that is called; use"):
        _units(model, BLOCKS)


def test_a_shared_parameter_stays_within_a_block() -> None:
    model = Model()
    model.net.head.weight = model.net.embedding.weight
    _units(model, BLOCKS)
    with pytest.raises(ConfigError, match=r"^trainer.strategy.blocks=head\$: two blocks share net.embedding.weight; use"):
        _units(model, "head$")


def test_layers_that_can_not_be_divided_are_refused() -> None:
    group: Any = {"world_size": 6, "timeout": 9, "process_group_backend": None}
    strategy = ModelParallel(**group, blocks=BLOCKS, tensor_parallel_size=3, plan={})
    for model, plan, line in (
        (Model(), {"colwise": "tail"}, "plan.colwise=tail: matches no linear layer; use part of net"),
        (Model(), {"colwise": "head$"}, "tensor_parallel_size=3: does not divide the 4 out_features of net.h"),
        (nn.Sequential(nn.BatchNorm1d(3)), {}, "tensor_parallel_size=3: 0 would count a sample once for each proc"),
    ):
        with pytest.raises(ConfigError, match=rf"^trainer\.strategy\.{line}"):
            strategy._divide_layers(model, plan)


def test_processes_with_the_same_samples_share_a_batch(compose: Callable[..., DictConfig]) -> None:
    options = ("trainer=cpu", "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "datamodule.global_batch_size=48")
    plan = Plan.from_config(compose(*options, "trainer.devices=4"))
    assert (plan.world_size, plan.data_parallel_size, plan.batch_size, plan.global_batch_size) == (4, 2, 24, 48)
    assert Plan.from_config(compose(*options)).data_parallel_size == 1  # one process has nobody to share with
    with pytest.raises(ConfigError, match=r"^trainer.strategy.tensor_parallel_size=2: does not divide the 3 processes"):
        Plan.from_config(compose(*options, "trainer.devices=3"))


KEPT = ("trainer.gradient_clip_val=0.05", "callbacks=ema", "callbacks.ema.decay=0.9", "guards.nonfinite.action=skip")
KEPT += ("++callbacks.progress=null", "callbacks.pictures=null", "guards.preemption.every_n_steps=1")
KEPT += ("datamodule.global_batch_size=240", "trainer.precision=64-true")
# two epochs of five steps, with BatchNorm; one step is left out
OPTIONS = ("trainer.max_epochs=2", "model=cnn", "model.net.width=4", *KEPT)
FSDP = (*OPTIONS, "trainer/strategy=fsdp", "trainer.devices=2")
DDP = (*OPTIONS, "trainer.devices=2")
STOPPED_AT = 7  # steps: within the second epoch


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    whole, trainer = trained(folder / "whole", *FSDP, extra=[watched := Watched(), poison()])
    after = {name: tensor.full_tensor() for name, tensor in trainer.lightning_module.named_parameters()}
    plain, _ = trained(folder / "ddp", *DDP, extra=[poison()])
    number = stopped(folder / "stopped", STOPPED_AT, *FSDP)
    left = folder / "stopped" / "checkpoints" / "last.ckpt"
    ddp, _ = trained(folder / "ddp from parts", *DDP, ckpt_path=left)
    from_plain, _ = trained(folder / "parts from ddp", *FSDP, ckpt_path=folder / "ddp" / "checkpoints" / "previous.ckpt")
    dist.barrier()
    resumed, tester = trained(folder / "stopped", *FSDP, ckpt_path=left)
    model: Any = tester.lightning_module
    best = folder / "stopped" / "checkpoints" / "best.ckpt"
    return {
        "held": watched.held,
        "number": number,
        "left out": [callback.skipped_step for callback in trainer.callbacks if hasattr(callback, "skipped_step")],
        "whole": whole,
        "after": after,
        "plain": plain,
        "resumed": differences(whole | NOWHERE, resumed | NOWHERE),
        "others": [ddp, from_plain],
        "tested": tester.test(model, tester.datamodule, ckpt_path=str(best), verbose=False),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    """The measurements of each of two ranks: one group for all tests of this file."""
    return in_ranks(2, partial(check_all, folder=folder), folder)


@pytest.mark.slow
def test_each_process_holds_a_part_of_weights_gradients_and_optimizer_state(results: list[dict[str, Any]]) -> None:
    for name in ("weights", "gradients", "optimizer"):
        held = [rank["held"][name] for rank in results]
        assert sum(held) == results[0]["held"]["whole"]
        assert max(held) < 0.6 * sum(held)


@pytest.mark.slow
def test_clipping_averages_and_a_step_left_out_are_those_of_whole_models(results: list[dict[str, Any]]) -> None:
    parts = results[0]["whole"]
    assert [rank["left out"] for rank in results] == [[2], [2]]  # the loss was not finite on rank one alone
    assert_equal(parts, results[0]["plain"])
    assert furthest(parts["current_model_state"], parts["state_dict"]) > 1e-4  # else there is no average
    assert all(torch.equal(tensor, parts["state_dict"][name]) for name, tensor in results[0]["after"].items())  # at the end


@pytest.mark.slow
def test_a_preempted_run_goes_on_to_the_bit(results: list[dict[str, Any]]) -> None:
    assert [(rank["number"], rank["resumed"]) for rank in results] == [(signal.SIGTERM, [])] * 2


@pytest.mark.slow
def test_what_was_trained_in_parts_goes_on_in_whole_models_and_on_one_process(
    results: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    one, _ = trained(tmp_path, *OPTIONS, ckpt_path=folder / "whole" / "checkpoints" / "previous.ckpt")
    for other in (one, *results[0]["others"]):
        assert other["global_step"] == 10
        assert furthest(other["current_model_state"], results[0]["whole"]["current_model_state"]) < 1e-10


@pytest.mark.slow
def test_a_checkpoint_is_read_as_any_other(results: list[dict[str, Any]], folder: Path) -> None:
    saved = last(folder / "whole")["state_dict"]
    single = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in saved.items()}
    group = last(folder / "whole")["hyper_parameters"]["model"]
    assert differences(dict(load_model(folder / "whole" / "checkpoints" / "last.ckpt", group).state_dict()), single) == []
    assert results[0]["tested"] == results[1]["tested"]
    assert results[0]["tested"][0]["test/loss"] > 0


# Layers that are divided besides, on a mesh of two by two processes

FEW = ("trainer.max_epochs=1", "model.net.hidden=[16, 8]", "trainer/strategy=tensor_parallel", "trainer/plan=mlp", *KEPT)
FEW += ("+model.torchmetrics.f1._target_=torchmetrics.classification.MulticlassF1Score", "+model.torchmetrics.f1.num_classes=10")
MESH = (*FEW, "trainer.devices=4")


def check_mesh(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    whole, trainer = trained(folder / "whole", *MESH, extra=[watched := Watched(), poison()])
    weights = dict(trainer.lightning_module.named_parameters())
    number = stopped(folder / "stopped", 3, *MESH)
    dist.barrier()
    resumed, _ = trained(folder / "stopped", *MESH, ckpt_path=folder / "stopped" / "checkpoints" / "last.ckpt")
    return {
        "held": watched.held,
        "number": number,
        "whole": whole,
        "resumed": differences(whole | NOWHERE, resumed | NOWHERE),
        "mesh": [weights[f"net.layers.{number}.weight"].device_mesh.ndim for number in (1, 4, 7)],
    }


@pytest.fixture(scope="module")
def on_mesh(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mesh")
    return in_ranks(4, partial(check_mesh, folder=folder), folder)


@pytest.mark.slow
def test_layers_of_a_plan_are_divided_twice_and_the_others_once(on_mesh: list[dict[str, Any]]) -> None:
    assert on_mesh[0]["mesh"] == [2, 2, 1]
    twice = 64 * 16 + 16 + 16 * 8  # their numbers: weights, and the first one's bias
    once = on_mesh[0]["held"]["whole"] - twice
    for name in ("weights", "gradients", "optimizer"):
        assert sum(rank["held"][name] for rank in on_mesh) == twice + 2 * once


@pytest.mark.slow
def test_a_mesh_goes_on_to_the_bit_and_gives_the_result_of_one_process(on_mesh: list[dict[str, Any]], tmp_path: Path) -> None:
    assert [(rank["number"], rank["resumed"]) for rank in on_mesh] == [(signal.SIGTERM, [])] * 4
    one, _ = trained(tmp_path, *FEW, "trainer.devices=1", extra=[poison(rank=0)])
    assert_equal(on_mesh[0]["whole"], one)
    assert on_mesh[0]["whole"]["metrics"] == pytest.approx(one["metrics"], abs=1e-12)
