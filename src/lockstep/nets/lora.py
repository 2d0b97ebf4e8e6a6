"""Low-rank adaptation of linear layers (Hu et al. 2021, arXiv:2106.09685)."""

import math
import re

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import check_at_least, config_error


class LoRALinear(nn.Linear):
    """A linear layer with a correction of low rank: (weight + scale * lora_up @ lora_down) x + bias.

    The layer's own parameters keep their names. `lora_up` (outputs, rank) begins as zero, so that the layer begins as it was, and
    `lora_down` (rank, inputs) as the weights of a linear layer.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = layer.in_features, layer.out_features, scale
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:
        low = functional.linear(functional.linear(input, self.lora_down), self.lora_up)
        return super().forward(input) + self.scale * low

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return a plain layer with the correction added to its weight."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.weight + self.scale * (self.lora_up @ self.lora_down))
        layer.bias = self.bias
        return layer


def lora(net: nn.Module, rank: int = 8, alpha: float = 16.0, match: str = "", train: str | None = None) -> nn.Module:
    """Add corrections to linear layers of the net, in place, and freeze its other parameters.

    Args:
        alpha: the scale is alpha / rank.
        match: a regular expression, found in the names of the layers.
        train: a regular expression, found in the names of parameters that are trained besides.

    Raises:
        ConfigError: `match` or `train` is found in no name.
    """
    check_at_least(1, rank=rank)
    layers = {name: layer for name, layer in net.named_modules(remove_duplicate=False) if type(layer) is nn.Linear}
    matches = {name: layer for name, layer in layers.items() if re.search(match, name)}
    if not matches:
        names = ", ".join(layers) or "one, and this net has none"
        raise config_error("model.adapt.match", match, f"found in no name of a linear layer; use part of {names}")
    also = [] if train is None else [name for name, _ in net.named_parameters() if re.search(train, name)]
    if train is not None and not also:
        raise config_error("model.adapt.train", train, "found in no parameter's name; use part of one, or null")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in also)
    adapted = {layer: LoRALinear(layer, rank, alpha / rank) for layer in matches.values()}  # one for each of several names
    for name, layer in matches.items():
        net.set_submodule(name, adapted[layer])
    return net
