"""Metrics of training that are counted for several batches at once."""

from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.nn import functional

from lockstep.datamodules.batches import Batch
from lockstep.extras.fast_loop.plain import is_replaced
from lockstep.models.classifier import Classifier, check_class_numbers
from lockstep.models.sample_mean import Sums

_BATCHES, _NUMBERS = 64, 1 << 18  # at most stored; a batch with more numbers is counted at once
Kept = tuple[Tensor, Tensor, Tensor]  # outputs, the logarithms of their probabilities, targets
# A model that has one of these may look at the sums, or measures in its own way.
_AS_THEY_ARE = ("training_step", "loss_and_values", "count_values", "measure", "losses", "hits")
_AS_THEY_ARE += ("on_train_batch_end", "on_train_epoch_end", "on_save_checkpoint")


class LaterCounts(Callback):
    """Measure the losses and hits of a Classifier's steps for several batches at once: on a CPU these calls take longer than what
    they compute of a small batch. The sums and the gradients have the same bits; a step's own loss may be rounded otherwise.

    Outputs are copied: small tensors that outlive their step lie between the large ones of the next, which then take other memory
    at every step.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self._number = 0  # number of stored batches
        self._batches: list[Kept] = []  # for as many as are kept at most, of one shape: views of `_together`
        self._together: Kept | None = None
        self._class_weights: dict[float, Tensor] = {}  # (classes,), by a batch's loss_weight

    @classmethod
    def install(cls, trainer: Any) -> None:
        """Count the steps of the trainer's model this way, if no code looks at the sums at each step."""
        model = trainer.lightning_module
        skips = any(getattr(callback, "action", None) == "skip" for callback in trainer.callbacks)  # a guard
        is_as_it_is = (
            isinstance(model, Classifier)
            and not model.label_smoothing
            and not any(is_replaced(name, model, Classifier) for name in _AS_THEY_ARE)
        )
        is_mixed = isinstance(trainer.precision_plugin, MixedPrecision)  # its losses have another type than the outputs
        if is_as_it_is and not skips and not is_mixed and trainer.strategy.root_device.type == "cpu":
            counts = cls(model)
            trainer.callbacks.insert(0, counts)
            model.loss_and_values, model.count_values = counts.loss_and_outputs, counts.keep

    def loss_and_outputs(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Replace `loss_and_values`."""
        outputs = self.model(batch.inputs)
        check_class_numbers(batch.targets)
        logarithms, targets = outputs.log_softmax(dim=1), batch.targets.long()  # the cross entropy in its two parts
        loss = functional.nll_loss(logarithms, targets, self._weights(logarithms, batch.loss_weight), reduction="sum")
        return loss, {"outputs": outputs.detach(), "logarithms": logarithms.detach()}

    def _weights(self, logarithms: Tensor, loss_weight: float) -> Tensor:
        """Return a `loss_weight` for each class: a product with the sum would be a call of its own, forward and backward."""
        if loss_weight not in self._class_weights:
            self._class_weights[loss_weight] = logarithms.new_full((logarithms.shape[1],), loss_weight)
        return self._class_weights[loss_weight]

    def keep(self, batch: Batch, values: Any) -> None:
        """Replace `count_values`."""
        kept: Kept = values["outputs"], values["logarithms"], batch.targets.long()
        if not self._batches or kept[0].shape != self._batches[0][0].shape:
            self.count()
            self._make_room(kept)
        for there, part in zip(self._batches[self._number], kept, strict=True):
            there.copy_(part)
        self._number += 1
        vars(self.model)["samples_trained"] += len(kept[2])  # nn.Module.__setattr__ looks for parameters and buffers first
        if self._number == len(self._batches):
            self.count()

    def _make_room(self, kept: Kept) -> None:
        batches = max(1, min(_BATCHES, _NUMBERS // max(1, kept[0].numel())))
        outputs, logarithms, targets = (part.new_empty(batches, *part.shape) for part in kept)
        self._together = outputs, logarithms, targets
        self._batches = list(zip(outputs, logarithms, targets, strict=True))

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:  # before the model's own
        self.count()

    def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
        self.count()

    def count(self) -> None:
        if not self._number or self._together is None:
            return
        means, batches, samples = self.model.train_means, self._number, len(self._batches[0][0])
        outputs, logarithms, targets = (parts[:batches].flatten(end_dim=1) for parts in self._together)
        self._number = 0
        values = {"loss": functional.nll_loss(logarithms, targets, reduction="none"), **self.model.hits(outputs, targets)}
        stacked = torch.stack([values[name] for name in means.names]).view(len(means.names), batches, samples)
        totals = stacked.sum(dim=2, dtype=torch.float64)
        # One after the other, as they came.
        means.sums.copy_(torch.cat([means.sums.unsqueeze(1), totals[:, :-1]], dim=1).cumsum(dim=1)[:, -1])
        means.update(Sums(totals[:, -1], batches * samples))
