"""Low-rank adaptation of linear layers (Hu et al. 2021, arXiv:2106.09685)."""

import math
import re

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import check_at_least, config_error
from lockstep.runs.shares import EqualBuffers


class LoRALinear(EqualBuffers, nn.Linear):
    """A linear layer, under the names its parameters had, and a correction of low rank: (weight + scale * up @ down) x + bias.

    `lora_up` (outputs, rank) begins as zero, so that the layer begins as it was; `lora_down` (rank, inputs) as weights do.
    """

    equal_buffers = ("lora_scale",)
    lora_scale: Tensor

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        self.register_buffer("lora_scale", layer.weight.new_tensor(scale))
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:
        low = functional.linear(functional.linear(input, self.lora_down), self.lora_up)
        return super().forward(input) + self.lora_scale * low

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return the plain layer that computes the same: the correction is added to its weight."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.weight + self.lora_scale * (self.lora_up @ self.lora_down))
        layer.bias = self.bias
        return layer


def lora(net: nn.Module, rank: int = 8, alpha: float = 16.0, match: str = "", train: str | None = None) -> nn.Module:
    """Return the net, changed in place: its nn.Linear layers in whose names `match` is found get a LoRALinear's correction, of
    scale alpha / rank, and only parameters in whose names `train` is found are trained besides. Both are regular expressions.

    Raises ConfigError where no layer is found.
    """
    check_at_least(1, rank=rank)
    layers = {name: layer for name, layer in net.named_modules(remove_duplicate=False) if type(layer) is nn.Linear}
    matches = {name: layer for name, layer in layers.items() if re.search(match, name)}
    if not matches:
        accepted = f"found in no name of a linear layer; use part of {', '.join(layers) or 'one, and this net has none'}"
        raise config_error("model.adapt.match", match, accepted)
    also = [] if train is None else [name for name, _ in net.named_parameters() if re.search(train, name)]
    if train is not None and not also:
        raise config_error("model.adapt.train", train, "found in no parameter's name; use part of one, or null")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in also)
    adapted = {id(layer): LoRALinear(layer, rank, alpha / rank) for layer in matches.values()}  # one for each of several names
    for name, layer in matches.items():
        net.set_submodule(name, adapted[id(layer)])
    return net
