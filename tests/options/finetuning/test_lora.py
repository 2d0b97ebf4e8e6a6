"""Corrections of low rank: nothing at the start, little to train, and the same net when they are merged."""

import copy

import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.nets import MLP
from lockstep.nets.lora import lora


def mlp() -> MLP:
    """Linear layers 1 and 4 of `layers`, 4 to 8 to 3 numbers, in float64."""
    torch.manual_seed(0)
    return MLP((4,), 3, [8]).double()


def test_at_first_it_is_the_net_and_trained_is_the_correction_alone() -> None:
    plain = mlp()
    adapted = lora(copy.deepcopy(plain), rank=2, alpha=4.0)
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(adapted(x), plain(x))
    assert {name for name, p in adapted.named_parameters() if p.requires_grad} == {
        *("layers.1.lora_down", "layers.1.lora_up", "layers.4.lora_down", "layers.4.lora_up")
    }
    assert plain.state_dict().keys() < adapted.state_dict().keys()  # a checkpoint of the net fits


def test_a_pattern_that_finds_no_linear_layer_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^model\.adapt\.match=head: found in no name of .* part of layers\.1, layers\.4$"):
        lora(mlp(), match="head")
