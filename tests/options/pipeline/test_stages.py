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
