"""Language modelling."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import config_error
from lockstep.extras.language.tokens import NOT_COUNTED
from lockstep.models.sample_mean import SampleMean
from lockstep.models.task import Task

METRICS = ("loss", "perplexity")


class TokenMeans(SampleMean):
    """Nats and tokens, summed over windows; the metrics are made of the sums."""

    def __init__(self, metrics: Sequence[str]) -> None:
        super().__init__(("nats", "tokens"))
        self.metrics = tuple(metrics)

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name."""
        nats, tokens = self.sums
        values = {"loss": nats / tokens, "perplexity": (nats / tokens).exp()}
        return {name: values[name] for name in self.metrics}


class LanguageModel(Task):
    """Cross entropy of the next token, in nats.

    `loss` is the mean over all target tokens of an epoch and of all ranks, `perplexity` its exponential.

    In the gradient each target of a step weighs the same, whichever batch and rank it is on: one by the number of positions in
    the windows. Positions without a target weigh nothing.
    """

    means = TokenMeans

    def __init__(self, *, metrics: Sequence[str] = ("loss",), **task: Any) -> None:
        super().__init__(metrics=metrics, **task)
        if unknown := sorted(set(metrics) - set(METRICS)):
            raise config_error("model.metrics", unknown, f"not measured by a language model; use {', '.join(METRICS)}")
        self.preprocess = nn.Identity()  # token numbers are not scaled

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Measure windows, from logits (n, length, tokens) and targets (n, length)."""
        logits = outputs.to(torch.promote_types(outputs.dtype, torch.float32)).flatten(0, 1)
        each = functional.cross_entropy(logits, targets.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        nats = each.view(targets.shape).sum(dim=1)
        return {"loss": nats / targets.shape[1], "nats": nats, "tokens": (targets != NOT_COUNTED).sum(dim=1)}
