"""What of a model is gathered together, and which models can't be in parts."""

from collections.abc import Callable

import pytest
import torch
from omegaconf import DictConfig
from refusals import refusal
from torch import nn

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.trainer.batchnorm import synchronise_batchnorm
from lockstep.trainer.model_parallel import _check_norms, _check_ties, _units

BLOCKS = r"(^|\.)\d+$"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Model(nn.Module):
    """As a LightningModule is, of which no forward is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss, self.parts = Net(), nn.CrossEntropyLoss(), nn.ModuleList([nn.Linear(2, 2)])


def names(model: nn.Module, blocks: str) -> list[str]:
    found = {module: name for name, module in model.named_modules()}
    return [found[unit] for unit in _units(model, blocks)]


def test_blocks_come_before_what_they_are_in_and_what_is_not_called_or_has_no_parameter_is_none() -> None:
    model = Model()
    assert names(model, BLOCKS) == [
        *("net.layers.0.0", "net.layers.0", "net.layers.1.0", "net.layers.1"),
        *("net", "parts.0"),
    ]
    assert names(model, "head$") == ["net.head", "net", "parts.0"]
    model.parts.append(model.net.layers[0])  # under two names it is one
    assert names(model, BLOCKS).count("net.layers.0") == 1


def test_a_parameter_of_the_model_itself_is_refused() -> None:
    model = Model()
    model.temperature = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match=r"^trainer.strategy._target_=\S+: temperature is in no layer that is called; accepted"):
        list(_units(model, BLOCKS))


def test_a_shared_parameter_stays_within_a_block() -> None:
    model = Model()
    model.net.head.weight = model.net.embedding.weight
    for blocks, is_refused in ((BLOCKS, False), ("head$", True)):
        units = list(_units(model, blocks))
        if is_refused:
            with pytest.raises(ConfigError, match=r"^trainer.strategy.blocks=head\$: net\.\S+ and net\.\S+ are one parameter"):
                _check_ties(model, units, blocks)
        else:
            _check_ties(model, units, blocks)


def test_each_process_s_own_batchnorm_is_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(ConfigError, match=r"^trainer.sync_batchnorm=false: 0 would have statistics of its own on each process"):
        _check_norms(model)
    synchronise_batchnorm(model)
    _check_norms(model)


def test_a_scaler_of_gradients_is_refused_where_there_are_several_processes(compose: Callable[..., DictConfig]) -> None:
    scaled = ("trainer/strategy=fsdp", "trainer.accelerator=cpu", "trainer.precision=16-mixed")
    assert Plan.of(compose(*scaled)).world_size == 1
    with pytest.raises(ConfigError, match=r"^trainer.precision=16-mixed: its scaler of gradients does not see the parts that "):
        Plan.of(compose(*scaled, "trainer.devices=2"))


def test_what_is_of_ddp_alone_is_refused(compose: Callable[..., DictConfig]) -> None:
    assert "ModelParallel over gloo" in str(Plan.of(compose("trainer=cpu", "trainer/strategy=fsdp", "trainer.devices=2")))
    wrong = compose("trainer/strategy=fsdp", "trainer.strategy.blocks='('")
    assert refusal(wrong) == "trainer.strategy.blocks=(: accepted is a regular expression"
