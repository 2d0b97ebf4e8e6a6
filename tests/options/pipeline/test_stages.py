"""Which nets can be cut into stages, and what a config says of them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from omegaconf import DictConfig
from stage_net import Residual
from torch import nn

from lockstep.build import build_trainer
from lockstep.config.plan import Plan
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.schedules import constant
from lockstep.parity.trainings import Sides
from lockstep.runs.composition import compose as compose_of
from lockstep.strategies.pipeline.pipeline import check_model
from lockstep.strategies.pipeline.stages import layers_of

STAGES = ("trainer=pipeline", "trainer.accelerator=cpu")


def classifier(net: nn.Module, kind: type[Classifier] = Classifier) -> Classifier:
    parts = {"optimizer": partial(torch.optim.SGD, lr=0.1), "lr_scheduler": constant, "metrics": ("loss",)}
    return kind(net=net, spec=DataSpec((4,), 3), **parts)


def test_layers_are_shared_out_in_order_each_once() -> None:
    assert [layers_of(stage, 3, 8) for stage in range(3)] == [range(2), range(2, 5), range(5, 8)]


def test_stages_share_samples(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*STAGES, "trainer.strategy.stages=3", "datamodule.global_batch_size=48")
    assert (cfg.trainer.strategy.stages, cfg.trainer.devices) == (3, 3)
    plan = Plan.from_config(cfg)
    assert (plan.world_size, plan.data_parallel_size, plan.batch_size) == (3, 1, 48)
    assert str(plan).startswith("3 CPU processes, 3 with the same samples, Pipeline over gloo; global batch 48 (48 per process)")
    assert Plan.from_config(compose(*STAGES, "trainer.strategy.stages=1")).world_size == 1


def test_stages_that_are_not_the_processes_are_refused(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*STAGES, "trainer.devices=4")
    with pytest.raises(ConfigError, match=r"^trainer.strategy.stages=2: is not the number of processes; use 4, or trainer.dev"):
        build_trainer(cfg, Plan.from_config(cfg))


def test_parity_does_not_compare_stages() -> None:
    target = "lockstep.strategies.pipeline.pipeline.Pipeline"
    with pytest.raises(ConfigError, match=rf"^trainer\.strategy\._target_={target}: leaves each process the gradients"):
        Sides.of(compose_of(*STAGES, config_name="parity"))


def test_nets_that_can_not_be_cut_are_refused() -> None:
    norm, scale = Residual((4,), 3), Residual((4,), 3)
    norm.layers[2], scale.scale = nn.BatchNorm1d(8), nn.Parameter(torch.ones(()))
    for net, said in ((norm, "layers.2 would have the statistics of a micro-batch"), (scale, "net.scale is in no stage; use")):
        with pytest.raises(ConfigError, match=f"^model.net._target_=Residual: {said}"):
            check_model(classifier(net), 2)


def test_more_stages_than_layers_and_stages_without_training_are_refused() -> None:
    net = Residual((4,), 3)
    check_model(classifier(net), 4)
    with pytest.raises(ConfigError, match=r"^trainer.strategy.stages=9: stage 1 has nothing to train; use fewer"):
        check_model(classifier(net), 9)
    net.layers[2].requires_grad_(False)
    check_model(classifier(net), 2)
    with pytest.raises(ConfigError, match=r"^trainer.strategy.stages=4: stage 2 has nothing to train; use fewer"):
        check_model(classifier(net), 4)


def test_a_model_without_a_net_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model._target_=BoringModel: has no net and no optimizer that stages can divide"):
        check_model(BoringModel(), 2)
