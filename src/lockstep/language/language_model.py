"""Language modelling."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.language.tokens import NOT_COUNTED
from lockstep.models.supervised import Supervised


class LanguageModel(Supervised):
    """Cross entropy of the next token, in nats.

    `loss` is the mean over all target tokens of an epoch and of all ranks.

    In the gradient each target of a step weighs the same, whichever batch and rank it is on: one by the number of positions in
    the windows. Positions without a target weigh nothing.
    """

    def __init__(self, **model: Any) -> None:
        super().__init__(**model)
        self.preprocess = nn.Identity()  # token numbers are not scaled

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss () and the logits (n, length, tokens) of windows and their targets, (n, length)."""
        inputs, targets = batch
        logits = self(inputs)
        flat = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
        nats = functional.cross_entropy(flat, targets.flatten(), ignore_index=NOT_COUNTED, reduction="sum")
        tokens = (targets != NOT_COUNTED).sum()
        self.log_means(stage, {"loss": nats.detach() / tokens.clamp(min=1)}, tokens)
        return nats / targets.numel(), logits
