"""Classification."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.models.supervised import Supervised


class Classifier(Supervised):
    """Cross entropy, and the accuracy. A target of -100, torch's ignore_index, has no loss and is never hit."""

    known_metrics = ("loss", "acc")

    def __init__(self, *, label_smoothing: float = 0.0, **model: Any) -> None:
        super().__init__(**model)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing}: is not a fraction; use 0 to 1")
        self.label_smoothing = label_smoothing

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss () and the logits (n, classes) of inputs (n, ...) and class numbers (n,)."""
        inputs, targets = batch
        targets = targets if targets.is_floating_point() else targets.long()  # torch refuses those
        logits = self(inputs)
        loss = self.loss(logits, targets)
        values = {"loss": loss.detach(), "acc": self.hits(logits.detach(), targets)}
        self.log_means(stage, {name: values[name] for name in self.metric_names}, len(targets))
        return loss, logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return a mean over samples, those without a class included: all weigh the same on any number of processes."""
        return functional.cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing).mean()

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return which samples have their target's logit as the largest, the first of equal ones, bool (n,). NaN hits nothing."""
        largest, classes = logits.max(dim=1)
        return (classes == targets) & (largest == largest)

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities, not logits: torchmetrics guesses for each batch which of the two it has been given."""
        return outputs.softmax(dim=1, dtype=torch.promote_types(outputs.dtype, torch.float32)), targets

    def predict(self, inputs: Tensor) -> Tensor:
        """Return probabilities (n, classes), from the inputs of Supervised.predict."""
        return super().predict(inputs).softmax(dim=1)
