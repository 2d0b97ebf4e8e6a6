"""Losses at given numbers of samples, of a run that ends with the last."""

from collections.abc import Sequence
from typing import Any

from lightning import Callback, LightningModule, Trainer

from lockstep.runs.results import earlier, samples_trained
from lockstep.trainer.steps import ends_step

_NEVER = 10**9  # batches from one validation to the next


class LossAtSamples(Callback):
    """Validates at the first step after which training has seen each of the numbers of samples in `at`, what the run that it
    began from had seen included, and ends training with the last. `metrics.json` has the losses as `loss_at_samples`.

    For `trainer.check_val_every_n_epoch=null`, with which Lightning counts the batches between validations over epochs.
    """

    def __init__(self, at: Sequence[int], monitor: str) -> None:
        self.at, self.monitor = sorted(at), monitor
        self.losses: dict[str, float] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        is_due = bool(self.at) and ends_step(trainer, batch_idx) and bool(self._due(trainer))
        trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1 if is_due else _NEVER
        if is_due and self._seen(trainer) >= self.at[-1]:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            loss = float(trainer.callback_metrics[self.monitor])
            self.losses |= {str(samples): loss for samples in self._due(trainer)}

    def _due(self, trainer: Trainer) -> list[int]:
        seen = self._seen(trainer)
        return [samples for samples in self.at if samples <= seen and str(samples) not in self.losses]

    def _seen(self, trainer: Any) -> int:
        return samples_trained(trainer) + earlier(trainer, "samples_before")

    @property
    def ended_by(self) -> str | None:
        return f"the plan, after {self.at[-1]} samples" if self.at and str(self.at[-1]) in self.losses else None

    def facts(self) -> dict[str, Any]:
        return {"loss_at_samples": self.losses} if self.at else {}

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.losses = {samples: loss for samples, loss in state_dict["losses"].items() if int(samples) in self.at}
