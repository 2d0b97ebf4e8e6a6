"""Lightning still does what lockstep.trainer.lightning_internals works around."""

import inspect
import os

import lightning.fabric
import pytest
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from lockstep.trainer.lightning_internals import is_attached


def test_lightning_still_broadcasts_before_every_batch() -> None:
    """When this fails, Lightning issue 21487 is mended: disable_sigterm_handling can lose that part, or go."""
    assert "_broadcast_sigterm_tensor" in vars(_TrainingEpochLoop)
    assert "self._broadcast_sigterm_tensor()" in inspect.getsource(_TrainingEpochLoop.advance)


def test_lightning_still_handles_sigterm_itself() -> None:
    """When this fails, see whether it still does so, and under which name."""
    assert "signal.SIGTERM" in inspect.getsource(_SignalConnector.register_signal_handlers)
    assert "broadcast" in inspect.getsource(_SignalConnector._sigterm_notifier_fn)


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
    """When this fails, see whether tests/options/plain_lightning/test_by_hand.py passes without SavesUncountedSteps."""
    assert "self._last_global_step_saved == trainer.global_step" in inspect.getsource(
        ModelCheckpoint._should_skip_saving_checkpoint
    )
    assert ModelCheckpoint()._last_global_step_saved == 0  # as the counter of steps that it does not see stays


def test_a_module_without_a_trainer_still_raises_for_it() -> None:
    """When this fails, `module.trainer is not None` may do."""
    module = LightningModule()
    assert not is_attached(module)
    with pytest.raises(RuntimeError, match="is not attached"):
        _ = module.trainer


def test_importing_lightning_still_makes_torch_load_nvml_in_every_step() -> None:
    """When this fails, PYTORCH_NVML_BASED_CUDA_CHECK need not be taken back."""
    assert 'os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"' in inspect.getsource(lightning.fabric)
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ  # by the import of this module's subject
