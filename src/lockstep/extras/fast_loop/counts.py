"""Metrics of training that are counted for several batches at once."""

from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.nn import functional

from lockstep.callbacks import NonFinite
from lockstep.datamodules.batches import Batch
from lockstep.extras.fast_loop.plain import is_replaced
from lockstep.models.classifier import Classifier, check_class_numbers
from lockstep.models.sample_mean import Sums

_BATCHES, _NUMBERS = 64, 1 << 18  # that are kept at most; a batch with more of them is counted at once
# A model that has one of these may look at the sums, or measures in its own way.
_AS_THEY_ARE = ("training_step", "loss_and_values", "count_values", "measure", "losses", "hits")
_AS_THEY_ARE += ("on_train_batch_end", "on_train_epoch_end", "on_save_checkpoint")


class LaterCounts(Callback):
    """Keeps the outputs of a Classifier's steps, and measures their losses, and whether they hit their targets, for several
    batches at once: on a CPU these calls take longer than what they compute of a small batch. The sums and the gradients have the
    same bits; a step's own loss is added up by the cross entropy, and may be rounded otherwise."""

    def __init__(self, model: Classifier) -> None:
        self.model = model
        # outputs, the logarithms of their probabilities, targets; of batches of one shape
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    @classmethod
    def install(cls, trainer: Any) -> None:
        """Has the steps of the trainer's model counted so, where nobody looks at the sums at each step."""
        model = trainer.lightning_module
        skips = any(isinstance(callback, NonFinite) and callback.action == "skip" for callback in trainer.callbacks)
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
        """In the place of `loss_and_values`."""
        outputs = self.model(batch.inputs)
        check_class_numbers(batch.targets)
        logarithms = outputs.log_softmax(dim=1)  # the cross entropy in its two parts
        loss = functional.nll_loss(logarithms, batch.targets, reduction="sum")
        return loss * batch.loss_weight, {"outputs": outputs.detach(), "logarithms": logarithms.detach()}

    def keep(self, batch: Batch, values: Any) -> None:
        """In the place of `count_values`."""
        outputs = values["outputs"]
        if self._kept and outputs.shape != self._kept[0][0].shape:
            self.count()
        self._kept.append((outputs, values["logarithms"], batch.targets))
        vars(self.model)["samples_trained"] += outputs.shape[0]  # nn.Module.__setattr__ looks for parameters and buffers first
        if len(self._kept) >= min(_BATCHES, _NUMBERS // max(1, outputs.numel())):
            self.count()

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:  # before the model's own
        self.count()

    def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
        self.count()

    def count(self) -> None:
        if not self._kept:
            return
        means, batches, samples = self.model.train_means, len(self._kept), len(self._kept[0][0])
        outputs, logarithms, targets = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        self._kept.clear()
        values = {"loss": functional.nll_loss(logarithms, targets, reduction="none"), **self.model.hits(outputs, targets)}
        stacked = torch.stack([values[name] for name in means.names]).view(len(means.names), batches, samples)
        totals = stacked.sum(dim=2, dtype=torch.float64)
        # One after the other, as they came.
        means.sums.copy_(torch.cat([means.sums.unsqueeze(1), totals[:, :-1]], dim=1).cumsum(dim=1)[:, -1])
        means.update(Sums(totals[:, -1], batches * samples))
