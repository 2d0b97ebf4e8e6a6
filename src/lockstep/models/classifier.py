"""Classification."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.models.supervised import Supervised


class Classifier(Supervised):
    """Cross entropy and accuracy. A target of -100, torch's ignore_index, has no loss and is never hit."""

    known_metrics = ("loss", "acc")

    def __init__(self, *, label_smoothing: float = 0.0, **model: Any) -> None:
        super().__init__(**model)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing}: is not a fraction; use 0 to 1")
        self.label_smoothing = label_smoothing

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss () and the logits (n, classes) of inputs (n, ...) and class indices (n,)."""
        inputs, targets = batch
        targets = targets if targets.is_floating_point() else targets.long()  # torch takes no other integers
        logits = self(inputs)
        loss = self.loss(logits, targets)
        self.log_means(stage, {"loss": loss.detach(), "acc": logits.detach().argmax(dim=1) == targets}, len(targets))
        return loss, logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all samples, so that each weighs the same on any number of processes, also one without a class."""
        loss = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.label_smoothing)
        return loss / len(targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return probabilities (n, classes), at least in float32."""
        return outputs.softmax(dim=1, dtype=torch.promote_types(outputs.dtype, torch.float32))
