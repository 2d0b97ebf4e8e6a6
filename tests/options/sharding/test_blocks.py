"""What of a model is gathered together, and which models can't be in parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.strategies.sharding.model_parallel import ModelParallel, _units

BLOCKS = r"(^|\.)\d+$"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Model(nn.Module):
    """As a LightningModule is, of which no forward is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()


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
    strategy, model = ModelParallel(**group, blocks=BLOCKS, tensor_parallel_size=3, plan={}), Model()
    with pytest.raises(ConfigError, match=r"^trainer.strategy.plan.colwise=tail: matches no linear layer; use part of net"):
        strategy._divide_layers(model, {"colwise": "tail"})
    with pytest.raises(
        ConfigError, match=r"^trainer.strategy.tensor_parallel_size=3: does not divide the 4 out_features of net.h"
    ):
        strategy._divide_layers(model, {"colwise": "head$"})
    with pytest.raises(ConfigError, match=r"^trainer.strategy.tensor_parallel_size=3: 0 would count a sample once for each proc"):
        strategy._divide_layers(nn.Sequential(nn.BatchNorm1d(3)), {})


def test_processes_with_the_same_samples_share_a_batch(compose: Callable[..., DictConfig]) -> None:
    options = ("trainer=cpu", "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "datamodule.global_batch_size=48")
    plan = Plan.from_config(compose(*options, "trainer.devices=4"))
    assert (plan.world_size, plan.data_parallel_size, plan.batch_size, plan.global_batch_size) == (4, 2, 24, 48)
    assert Plan.from_config(compose(*options)).data_parallel_size == 1  # one process has nobody to share with
    with pytest.raises(ConfigError, match=r"^trainer.strategy.tensor_parallel_size=2: does not divide the 3 processes"):
        Plan.from_config(compose(*options, "trainer.devices=3"))
