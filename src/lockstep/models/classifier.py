"""Classification."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.models.supervised import Supervised


class Classifier(Supervised):
    """Cross entropy. `acc`, and `topK` for any K, are the parts of samples whose target is among the first 1, or K, classes.

    A target of -100, torch's ignore_index, has no loss, and is never hit.
    """

    known_metrics = ("loss", "acc", "topK such as top5")

    def __init__(self, *, label_smoothing: float = 0.0, **model: Any) -> None:
        super().__init__(**model)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing}: is not a fraction; use 0 to 1")
        self.label_smoothing = label_smoothing
        self.firsts = {name: 1 if name == "acc" else int(name[3:]) for name in self.metric_names if name != "loss"}

    @classmethod
    def measures(cls, name: str) -> bool:
        return name in ("loss", "acc") or (name.startswith("top") and name[3:].isdigit())

    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean loss () and the logits (n, classes) of inputs (n, ...) and class numbers (n,)."""
        inputs, targets = batch
        targets = targets if targets.is_floating_point() else targets.long()  # torch refuses those
        logits = self(inputs)
        loss = self.loss(logits, targets)
        hits = self.hits(logits.detach(), targets)
        self.log_means(stage, {"loss": loss.detach(), **hits}, len(targets))
        return loss, logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return a mean over samples, those without a class included: all weigh the same on any number of processes."""
        return functional.cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing).mean()

    def hits(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return for each metric which samples it counts, bool (n,). Classes come before the target's if their logit is larger,
        or equal with a lower number, as for argmax; all do if the target is torch's ignore_index, or its logit is NaN."""
        chosen = targets.clamp(min=0).unsqueeze(1)
        own, classes = logits.gather(1, chosen), torch.arange(logits.shape[1], device=logits.device)
        is_before = ~(logits <= own) | ((logits == own) & (classes < chosen))
        before = is_before.sum(dim=1).masked_fill(targets < 0, logits.shape[1])
        return {name: before < number for name, number in self.firsts.items()}

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities, not logits: torchmetrics guesses for each batch which of the two it has been given."""
        return outputs.softmax(dim=1, dtype=torch.promote_types(outputs.dtype, torch.float32)), targets

    def predict(self, inputs: Tensor) -> Tensor:
        """Return probabilities (n, classes), from the inputs of Supervised.predict."""
        return super().predict(inputs).softmax(dim=1)
