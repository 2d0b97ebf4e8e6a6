"""When the checkpoint to continue from is saved: at settled steps and at the end, whatever the best one is."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import BARE, last, prepared, trained
from lightning import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.swa_utils import SWALR

from lockstep.callbacks import BestCheckpoint, checkpoints
from lockstep.checkpointing import read_checkpoint
from lockstep.errors import ConfigError, NamedFailure

NO_EPOCHS = "guards.checkpoint.every_n_epochs=null"


def saves(folder: Path, *overrides: str) -> list[tuple[int, int, int]]:
    """(epochs finished, steps, batches finished) each time last.ckpt was to be written."""
    datamodule, model, trainer = prepared(folder, *overrides, base=BARE)
    result: list[tuple[int, int, int]] = []

    def save_checkpoint(path: Path, **_: Any) -> None:
        assert path == folder / "checkpoints" / "last.ckpt"
        result.append((trainer.current_epoch, trainer.global_step, trainer.fit_loop.epoch_loop.batch_progress.total.completed))

    trainer.save_checkpoint = save_checkpoint
    trainer.fit(model, datamodule)
    return result


@pytest.mark.parametrize(
    ("epochs", "every", "saved"),
    [
        (50, 10, [10, 20, 30, 40, 50]),  # multigpu.py 50 10 of the DDP tutorial, at one step an epoch
        (25, 10, [10, 20, 25]),  # nothing that was trained is lost
        (3, 1, [1, 2, 3]),
    ],
)
def test_saved_every_n_epochs_and_at_the_end(epochs: int, every: int, saved: list[int], tmp_path: Path) -> None:
    options = ("datamodule.batch_size=1200", f"trainer.max_epochs={epochs}", f"guards.checkpoint.every_n_epochs={every}")
    assert saves(tmp_path, *options) == [(epoch, epoch, epoch) for epoch in saved]


def test_saved_between_steps_never_within_an_accumulation(tmp_path: Path) -> None:
    """Seven batches of 184 of 1293 samples, three to a step: steps of 3, 3 and 1 batches."""
    options = ("datamodule.batch_size=184", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=3")
    options += ("trainer.max_epochs=2", "guards.checkpoint.every_n_steps=1")
    # the 1293 samples are two global batches of 552 and a tail of 189, in two batches of it
    expected = [(0, 1, 3), (0, 2, 6), (1, 3, 8), (1, 4, 11), (1, 5, 14), (2, 6, 16)]
    assert saves(tmp_path, *options) == expected


def test_saved_once_where_intervals_meet(tmp_path: Path) -> None:
    options = ("datamodule.batch_size=300", "trainer.max_epochs=2", "guards.checkpoint.every_n_steps=2")
    assert saves(tmp_path, *options) == [(0, 2, 2), (1, 4, 4), (1, 6, 6), (2, 8, 8)]


def test_saved_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which goes on by a minute at each step here: more than 2.5 minutes have passed at every third one."""
    trainers: list[Any] = []
    clock = SimpleNamespace(monotonic=lambda: 60.0 * (trainers[0].global_step if trainers else 0))
    monkeypatch.setattr(checkpoints, "time", clock)
    datamodule, model, trainer = prepared(
        tmp_path,
        "datamodule.batch_size=150",  # eight steps an epoch
        "trainer.max_epochs=1",
        NO_EPOCHS,
        "guards.checkpoint.every_n_minutes=2.5",
        "+guards.checkpoint.ask_every_n_steps=1",
        base=BARE,
    )
    trainers.append(trainer)
    result: list[int] = []
    trainer.save_checkpoint = lambda *_, **__: result.append(trainer.global_step)
    trainer.fit(model, datamodule)
    assert result == [3, 6, 8]


def test_ranks_that_were_shown_different_files_are_told_so(tmp_path: Path) -> None:
    """As by NFS, whose other hosts see a file for a while that has been replaced."""
    callback = checkpoints.LastCheckpoint(str(tmp_path))
    strategy = SimpleNamespace(broadcast=lambda _: 6)
    trainer: Any = SimpleNamespace(current_epoch=0, global_step=8, global_rank=1, world_size=2, strategy=strategy)
    callback._logged_step = 8  # it has loaded one
    with pytest.raises(NamedFailure, match=r"^rank 1 has a checkpoint of step 8, rank 0 of step 6: .*; resume once more$"):
        callback.on_train_start(trainer, trainer)


def test_the_checkpoint_before_it_is_kept(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "datamodule.batch_size=300", "trainer.max_epochs=3", base=BARE)
    trainer.fit(model, datamodule)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"last.ckpt", "previous.ckpt"}
    assert last(tmp_path)["global_step"] == 12
    assert read_checkpoint("previous", tmp_path / "checkpoints" / "previous.ckpt")["global_step"] == 8


class KeepAt(Callback):
    """Keeps the last.ckpt that is there after so many batches."""

    def __init__(self, batches: int, to: Path) -> None:
        self.batches, self.to = batches, to

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.batches -= 1
        if not self.batches:
            shutil.copy(Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt", self.to)


SWA = [f"+callbacks.swa.{key}" for key in ("_target_=lightning.pytorch.callbacks.StochasticWeightAveraging", "swa_lrs=0.1")]
can_save_swa = pytest.mark.skipif(not hasattr(SWALR, "_set_anneal_func"), reason="this torch's SWALR has a function in its state")


@can_save_swa
def test_after_lightning_s_epoch_for_the_batchnorm_of_averaged_weights_there_is_nothing_to_train(tmp_path: Path) -> None:
    """As of a run that was killed during its test; that epoch is one more than trainer.max_epochs."""
    options = ("model=cnn", *SWA, "+callbacks.swa.swa_epoch_start=1", "trainer.max_epochs=2", "trainer.limit_train_batches=1")
    whole = trained(tmp_path / "run", *options)[0]
    assert whole["epoch"] == 3
    resumed = trained(tmp_path / "run", *options, ckpt_path=tmp_path / "run" / "checkpoints" / "last.ckpt")[0]
    assert not differences(resumed["state_dict"], whole["state_dict"])
    with pytest.raises(ConfigError, match=r"^trainer.max_epochs=1: \S+ is of epoch 2; accepted is 2 or more"):
        trained(tmp_path / "run", *options, "trainer.max_epochs=1", ckpt_path=tmp_path / "run" / "checkpoints" / "last.ckpt")


@can_save_swa
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_what_an_epoch_s_start_sets_up_is_there_within_it_or_a_line_says_so(
    schedule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lightning does not call the hook for the rest of an epoch; its own averaging of weights then had no schedule."""
    swa = [
        *SWA,
        "+callbacks.swa.swa_epoch_start=2",
        "+callbacks.swa.annealing_epochs=3",
        "trainer.max_epochs=4",
        "++events.fork=null",
    ]
    swa += [f"model/lr_scheduler={schedule}"]
    kept = tmp_path / "run" / "kept.ckpt"  # its own
    whole = trained(tmp_path / "run", *swa, extra=[KeepAt(10, kept)])[0]  # 4 batches an epoch: within the third
    assert "on_train_epoch_start" not in caplog.text
    resumed = trained(tmp_path / "run", *swa, extra=[KeepAt(0, kept)], ckpt_path=kept)[0]
    assert resumed["optimizer_states"][0]["param_groups"][0]["lr"] == whole["optimizer_states"][0]["param_groups"][0]["lr"]
    assert all(torch.equal(resumed["state_dict"][name], tensor) for name, tensor in whole["state_dict"].items())
    assert "on_train_epoch_start of KeepAt is not called for the rest of this epoch" in caplog.text


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_run_whose_accumulation_is_scheduled_goes_on_within_an_epoch(tmp_path: Path) -> None:
    """Seven batches an epoch, from the second on in steps of two."""
    scheduler = "{_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1, 1: 2}}"
    options = (f"+callbacks.steps={scheduler}", "datamodule.batch_size=180", "trainer.max_epochs=2", "++events.fork=null")
    kept = tmp_path / "run" / "kept.ckpt"
    whole = trained(tmp_path / "run", *options, extra=[KeepAt(12, kept)])[0]
    assert whole["global_step"] == 11
    resumed = trained(tmp_path / "run", *options, ckpt_path=kept)[0]
    for key in ("global_step", "state_dict", "optimizer_states", "loops"):
        assert not differences(resumed[key], whole[key]), key


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (6, ()),  # the second of the four batches of the second epoch
        (8, ()),  # the last one
        (3, ("trainer.accumulate_grad_batches=2",)),
        (6, ("events.fast_loop=null",)),
        (6, ("trainer.val_check_interval=2",)),
    ],
)
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint", "ignore:The dirpath has changed from")
def test_training_goes_on_after_the_batch_at_whose_end_lightning_s_own_checkpoint_was_saved(
    step: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("++events.fork=null", *options)
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    whole = trained(tmp_path / "run", *options, extra=[ModelCheckpoint(tmp_path / "own", **every)])[0]
    again = ModelCheckpoint(tmp_path / "again", **every)
    resumed = trained(tmp_path / "run", *options, extra=[again], ckpt_path=tmp_path / "own" / f"step={step}.ckpt")[0]
    for key in ("global_step", "state_dict", "optimizer_states", "loops"):
        assert not differences(resumed[key], whole[key]), key


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint", "ignore:The dirpath has changed from")
def test_such_a_checkpoint_is_gone_on_from_in_smaller_batches(tmp_path: Path) -> None:
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    whole = trained(tmp_path / "run", "++events.fork=null", extra=[ModelCheckpoint(tmp_path / "own", **every)])[0]
    smaller = ("++events.fork=null", "datamodule.batch_size=150", "trainer.accumulate_grad_batches=2")
    again = ModelCheckpoint(tmp_path / "again", **every)
    resumed = trained(tmp_path / "run", *smaller, extra=[again], ckpt_path=tmp_path / "own" / "step=6.ckpt")[0]
    assert resumed["global_step"] == 12
    assert resumed["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] == 24
    torch.testing.assert_close(resumed["state_dict"], whole["state_dict"])


@pytest.mark.parametrize(("key", "value", "shown"), [("save_last", True, "true"), ("filename", "best", "best")])
def test_another_checkpoint_callback_writes_none_of_the_run_s_own_files(key: str, value: Any, shown: str, tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, base=BARE)
    folder = tmp_path / "checkpoints"
    trainer.callbacks += [BestCheckpoint(folder, "best"), ModelCheckpoint(**{"dirpath": folder, key: value})]
    said = rf"^ModelCheckpoint\.{key}={shown}: \S+/(best|last)\.ckpt is the run's own; accepted is (another|false), or"
    with pytest.raises(ConfigError, match=said):
        trainer.fit(model, datamodule)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_weights_that_are_pruned_and_trained_again_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lightning's callback leaves its masks out of checkpoints."""
    prunes = "+callbacks.prune={_target_: lightning.pytorch.callbacks.ModelPruning, pruning_fn: l1_unstructured, amount: 0.2}"
    trained(tmp_path, prunes, "trainer.max_epochs=1")
    assert "ModelPruning" not in caplog.text
    trained(tmp_path, prunes, "trainer.max_epochs=2", ckpt_path=tmp_path / "checkpoints" / "last.ckpt")
    assert caplog.text.count("ModelPruning: a checkpoint does not say which weights are pruned") == 1
