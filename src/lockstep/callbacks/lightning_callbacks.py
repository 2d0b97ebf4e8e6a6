"""Lightning's own callbacks in a run that goes on from a checkpoint."""

import logging
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)

from lockstep.console import join_first
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)
_PRUNED = "ModelPruning: a checkpoint does not say which weights are pruned, 0 in it; they are trained until it prunes again"


class LightningCallbacks(Callback):
    """Leaves out those that would begin anew, calls those that have something to set up, and says what is lost."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            _leave_out_finders(trainer, checkpoint["global_step"])
            if any(isinstance(callback, ModelPruning) for callback in trainer.callbacks):  # pyright: ignore[reportAttributeAccessIssue]
                log.warning(_PRUNED)
            for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
                if type(callback).load_state_dict is EarlyStopping.load_state_dict:  # it would take the earlier patience back
                    checkpoint["callbacks"].get(callback.state_key, {})["patience"] = callback.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if batches_trained(trainer):
            _go_on_within_epoch(trainer, pl_module)


def _leave_out_finders(trainer: Any, step: int) -> None:
    """Lightning's finders of a rate or a batch size load a checkpoint of their own when training starts, which takes the place of
    that which a run goes on from: it would train from step 0. They find once; before a test one would set the steps to 0."""
    once = (BatchSizeFinder.on_fit_start, LearningRateFinder.on_fit_start)
    finders = [callback for callback in trainer.callbacks if type(callback).on_fit_start in once]
    trainer.callbacks = [callback for callback in trainer.callbacks if callback not in finders]
    if finders and step:
        names = join_first([type(callback).__name__ for callback in finders])
        log.warning(f"{names}: a run that goes on has the rate of its checkpoint, and the batch size of its config")


def _go_on_within_epoch(trainer: Any, model: LightningModule) -> None:
    """Lightning does not call `on_train_epoch_start` for the rest of an epoch. Its averaging of weights gets its schedule back
    in that hook, which knows whether it has counted the epoch, and its schedule of accumulation that of the epoch; what others do
    there may be wrong to do twice."""
    for callback in trainer.callbacks:
        if isinstance(callback, (StochasticWeightAveraging, GradientAccumulationScheduler)):
            callback.on_train_epoch_start(trainer, model)
    hooks = (type(part) for part in (model, *trainer.callbacks))
    own = [kind.__name__ for kind in hooks if not kind.on_train_epoch_start.__module__.startswith(("lightning.", "lockstep."))]
    if own:
        why = "Lightning calls it before an epoch's first batch; what it sets and no checkpoint holds is missing"
        log.warning(f"on_train_epoch_start of {join_first(own)} is not called for the rest of this epoch: {why}")
