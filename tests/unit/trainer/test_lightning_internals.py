"""What lockstep.trainer.lightning_internals works around in Lightning is still as it was."""

import inspect

from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from lockstep.trainer.lightning_internals import forget_saved_step


def test_lightning_still_broadcasts_before_every_batch() -> None:
    """When this fails, Lightning issue 21487 is mended: disable_sigterm_handling can lose that part, or go."""
    assert "_broadcast_sigterm_tensor" in vars(_TrainingEpochLoop)
    assert "self._broadcast_sigterm_tensor()" in inspect.getsource(_TrainingEpochLoop.advance)


def test_the_loop_still_counts_what_it_logs_apart_and_once_more_after_a_restart() -> None:
    """When this fails, see whether tests/unit/runs/test_resumption.py passes without set_logged_step."""
    assert '"_batches_that_stepped"' in inspect.getsource(_TrainingEpochLoop.on_save_checkpoint)
    assert "self._batches_that_stepped += 1" in inspect.getsource(_TrainingEpochLoop)


def test_the_epoch_in_which_it_restarted_still_ends_without_a_plateau_s_step() -> None:
    """When this fails, see whether tests/unit/runs/test_resumption.py passes without end_restart."""
    assert "update_plateau_schedulers=not self.restarting" in inspect.getsource(_FitLoop.on_advance_end)
    loop = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False).fit_loop
    loop.restarting = True
    loop.restarting = False
    assert not loop.epoch_loop.restarting  # the public way reaches further


def test_a_model_checkpoint_still_saves_once_at_a_step_that_lightning_has_counted() -> None:
    """When this fails, see whether tests/options/plain_lightning/test_by_hand.py passes without forget_saved_step."""
    assert "self._last_global_step_saved == trainer.global_step" in inspect.getsource(
        ModelCheckpoint._should_skip_saving_checkpoint
    )
    assert ModelCheckpoint()._last_global_step_saved == 0  # as the counter of steps that it does not see stays
    forget_saved_step(callback := ModelCheckpoint())
    assert callback._last_global_step_saved == -1
