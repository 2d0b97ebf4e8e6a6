"""Less memory for more time: results of a net's blocks are computed again in the backward pass."""

import re
from functools import partial
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstep.console import join_first
from lockstep.errors import config_error
from lockstep.trainer.batchnorm import is_batchnorm


class ActivationCheckpointing(Callback):
    """Store only the inputs of modules in whose names `match`, a regular expression, is found, and that are in no other such
    module, and repeat their forward pass before its gradients (Chen et al. 2016, arXiv:1604.06174).

    Noise from torch's generators is the same in both passes; names and states of the model do not change.
    """

    def __init__(self, match: str) -> None:
        re.compile(match)  # raises re.error if it is invalid
        self.match = match
        self._done: list[nn.Module] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or self._done:
            return
        names = [name for name, module in pl_module.named_modules() if type(module).forward is not nn.Module.forward]
        matches = [name for name in names if name and re.search(self.match, name)]
        blocks = [name for name in matches if not any(name.startswith(f"{other}.") for other in matches)]
        if not blocks:
            needs = f"found in no module's name; use part of a name such as {join_first(names[1:])}"
            raise config_error("callbacks.activation_checkpointing.match", self.match, needs)
        for name in blocks:
            block: Any = pl_module.get_submodule(name)
            if any(is_batchnorm(layer) for layer in block.modules()):
                needs = f"{name} has a BatchNorm, which would count each batch twice; use a pattern without it"
                raise config_error("callbacks.activation_checkpointing.match", self.match, needs)
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            self._done.append(block)
