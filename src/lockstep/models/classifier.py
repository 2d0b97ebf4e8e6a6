"""Classification."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.errors import ConfigError, config_error
from lockstep.models.task import Task, wrong_targets


class Classifier(Task):
    """Cross entropy. `acc`, and `topK` for any K, are 1 if the target is the first or among the first K classes."""

    def __init__(self, *, label_smoothing: float = 0.0, **task: Any) -> None:
        super().__init__(**task)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing}: is not a fraction; use 0 to 1")
        self.label_smoothing = label_smoothing
        if type(self).measure is not Classifier.measure:
            return  # a subclass may measure more
        for name in self.metric_names:
            if name not in ("loss", "acc") and not (name.startswith("top") and name[3:].isdigit()):
                raise config_error("model.metrics", name, "a classifier measures loss, acc, and topK such as top5")

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Measure logits (n, classes) and class numbers (n,). Raises ConfigError for targets that are none."""
        return {"loss": self.losses(outputs, targets), **self.hits(outputs.detach(), targets)}

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_class_numbers(targets)
        return functional.cross_entropy(outputs, targets.long(), reduction="none", label_smoothing=self.label_smoothing)

    def explain_index_error(self, targets: Tensor) -> None:
        """Raise ConfigError for a target that is no class number: torch names neither the data nor what it accepts."""
        last = self.spec.num_outputs - 1
        wrong = targets[(targets > last) | ((targets < 0) & (targets != -100))]  # torch's ignore_index
        if len(wrong):
            accepted = f"accepted by a classifier of num_outputs={last + 1} are class numbers from 0 to {last}"
            raise ConfigError(f"datamodule: a target is {int(wrong[0])}; {accepted}")

    def hits(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the values of `measure` besides the loss, from the number of classes before the target's: those with a larger
        output, or an equal one and a lower number, as for argmax. All are before a target that is torch's ignore_index, or whose
        output is NaN."""
        chosen = targets.long().clamp(min=0).unsqueeze(1)
        own, classes = outputs.gather(1, chosen), torch.arange(outputs.shape[1], device=outputs.device)
        is_before = ~(outputs <= own) | ((outputs == own) & (classes < chosen))
        before = is_before.sum(dim=1).masked_fill(targets < 0, outputs.shape[1])
        firsts = {name: 1 if name == "acc" else int(name[3:]) for name in self.metric_names if name == "acc" or name[:3] == "top"}
        return {name: before < number for name, number in firsts.items()}

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities, not logits: torchmetrics guesses for each batch which of the two it has been given."""
        return outputs.softmax(dim=1, dtype=torch.promote_types(outputs.dtype, torch.float32)), targets

    def predict(self, inputs: Tensor) -> Tensor:
        """Return probabilities (n, classes), from the inputs of Task.predict."""
        return super().predict(inputs).softmax(dim=1)


def check_class_numbers(targets: Tensor) -> None:
    if targets.ndim != 1 or targets.is_floating_point():
        raise wrong_targets(targets, "a classifier are class numbers, integers of shape (n,)")
