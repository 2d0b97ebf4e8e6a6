"""Language modelling."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import config_error
from lockstep.extras.language.tokens import NOT_COUNTED
from lockstep.models.sample_mean import SampleMean
from lockstep.models.task import Task, wrong_targets


class TokenMeans(SampleMean):
    """Sums over windows, of which the metrics are made when all are there."""

    SUMS = ("nats", "tokens", "bytes")
    DERIVED = ("loss", "perplexity", "bits_per_byte")

    def __init__(self, metrics: Sequence[str]) -> None:
        super().__init__(self.SUMS)
        self.metrics = tuple(metrics)

    def compute(self) -> dict[str, Tensor]:
        nats, tokens, stands_for = self.sums
        loss = nats / tokens
        derived = {"loss": loss, "perplexity": loss.exp(), "bits_per_byte": nats / (math.log(2) * stands_for)}
        return {name: derived[name] for name in self.metrics}


class LanguageModel(Task):
    """Cross entropy of the next token, of each token that is a target.

    `loss` is its mean over tokens in nats, `perplexity` the exponential of that, `bits_per_byte` the sum over tokens in bits by
    the bytes that these stand for. Each is taken once, over all tokens of an epoch and all ranks.

    In the gradient each target of a step weighs the same, one by the number of all positions in its windows, whichever batch and
    rank it is on; positions without a target weigh nothing.
    """

    means = TokenMeans
    token_bytes: Tensor

    def __init__(self, *, metrics: Sequence[str] = ("loss",), **task: Any) -> None:
        super().__init__(metrics=metrics, **task)
        if unknown := sorted(set(metrics) - set(TokenMeans.DERIVED)):
            raise config_error("model.metrics", unknown, f"a language model measures {', '.join(TokenMeans.DERIVED)}")
        self.preprocess = nn.Identity()  # of numbers of tokens
        self.counts_bytes = "bits_per_byte" in metrics
        self.register_buffer("token_bytes", torch.zeros(self.spec.num_outputs, dtype=torch.int64), persistent=False)
        self._ddp_params_and_buffers_to_ignore = ["token_bytes"]  # each rank has it from its data: no broadcast in each forward

    def setup(self, stage: str) -> None:
        super().setup(stage)
        datamodule = getattr(self.trainer, "datamodule", None)
        token_bytes: Tensor | None = getattr(datamodule, "token_bytes", None)
        if token_bytes is not None:
            self.token_bytes.copy_(token_bytes)
        elif self.counts_bytes:
            needs = f"{type(datamodule).__name__} has no token_bytes, how many bytes a token stands for; accepted is without it"
            raise config_error("model.metrics", "bits_per_byte", needs)
        net, begins_with = getattr(self.net, "separator", None), getattr(datamodule, "separator", None)
        if None not in (net, begins_with) and net != begins_with:
            accepted = f"accepted is {begins_with}, or null: tokens see others'"
            raise config_error("model.net.separator", net, f"the data's documents begin with token {begins_with}; {accepted}")

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Measures windows, from logits (n, length, tokens) and targets (n, length): the loss by `length`, and sums over targets.
        Raises ConfigError for targets of another shape."""
        if targets.shape != outputs.shape[:2] or targets.is_floating_point():
            raise wrong_targets(targets, "a language model are numbers of tokens, integers of shape (n, length)")
        logits = outputs.to(torch.promote_types(outputs.dtype, torch.float32)).flatten(0, 1)
        each = functional.cross_entropy(logits, targets.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        nats = each.view(targets.shape).sum(dim=1)
        counted = targets != NOT_COUNTED
        stands_for = self.token_bytes[targets.clamp(min=0)] * counted
        return {"loss": nats / targets.shape[1], "nats": nats, "tokens": counted.sum(dim=1), "bytes": stands_for.sum(dim=1)}
