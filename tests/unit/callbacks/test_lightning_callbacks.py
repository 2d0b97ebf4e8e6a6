"""Lightning's own callbacks in a run that goes on: what they set up at an epoch's start, and what no checkpoint holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, trained
from lightning import Callback
from torch.optim.swa_utils import SWALR

from lockstep.errors import ConfigError


class Own(Callback):
    """A user's callback, which sets something up at an epoch's start."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]


SWA = [f"+callbacks.swa.{key}" for key in ("_target_=lightning.pytorch.callbacks.StochasticWeightAveraging", "swa_lrs=0.1")]
can_save_swa = pytest.mark.skipif(not hasattr(SWALR, "_set_anneal_func"), reason="this torch's SWALR has a function in its state")


@can_save_swa
def test_after_lightning_s_epoch_for_the_batchnorm_of_averaged_weights_there_is_nothing_to_train(tmp_path: Path) -> None:
    """The run may have been killed during its test; that epoch is one more than trainer.max_epochs."""
    options = ("model=cnn", *SWA, "+callbacks.swa.swa_epoch_start=1", "trainer.max_epochs=2", "trainer.limit_train_batches=1")
    whole = trained(tmp_path / "run", *options)[0]
    assert whole["epoch"] == 3
    resumed = trained(tmp_path / "run", *options, ckpt_path=tmp_path / "run" / "checkpoints" / "last.ckpt")[0]
    assert not differences(resumed["state_dict"], whole["state_dict"])
    with pytest.raises(ConfigError, match=r"^trainer.max_epochs=1: \S+ is of epoch 2; use more than 2, or -1"):
        trained(tmp_path / "run", *options, "trainer.max_epochs=1", ckpt_path=tmp_path / "run" / "checkpoints" / "last.ckpt")


@can_save_swa
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_what_an_epoch_s_start_sets_up_is_there_within_it_or_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lightning does not call the hook for the rest of an epoch; its own averaging of weights then had no schedule."""
    swa = (*SWA, "+callbacks.swa.swa_epoch_start=2", "+callbacks.swa.annealing_epochs=3", "trainer.max_epochs=4")
    run = tmp_path / "run"
    whole = trained(run, *swa, extra=[KeepAll(tmp_path), Own()])[0]
    assert "on_train_epoch_start" not in caplog.text
    resumed = trained(run, *swa, extra=[Own()], ckpt_path=tmp_path / "9.ckpt")[0]  # 4 batches an epoch: within the third
    assert resumed["optimizer_states"][0]["param_groups"][0]["lr"] == whole["optimizer_states"][0]["param_groups"][0]["lr"]
    assert all(torch.equal(resumed["state_dict"][name], tensor) for name, tensor in whole["state_dict"].items())
    assert "on_train_epoch_start of Own is not called for the rest of this epoch" in caplog.text


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_run_whose_accumulation_is_scheduled_goes_on_within_an_epoch(tmp_path: Path) -> None:
    """Seven batches an epoch, from the second on in steps of two."""
    scheduler = "{_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1, 1: 2}}"
    options = (f"+callbacks.steps={scheduler}", "datamodule.batch_size=180", "trainer.max_epochs=2")
    whole = trained(tmp_path / "run", *options, extra=[KeepAll(tmp_path)])[0]
    assert whole["global_step"] == 11
    resumed = trained(tmp_path / "run", *options, ckpt_path=tmp_path / "11.ckpt")[0]
    for key in ("global_step", "state_dict", "optimizer_states", "loops"):
        assert not differences(resumed[key], whole[key]), key
