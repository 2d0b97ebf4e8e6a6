"""When the checkpoint to continue from is saved: at settled steps and at the end, whatever the best one is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import BARE, prepared, trained
from lightning.pytorch.callbacks import ModelCheckpoint


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


def test_saved_every_n_epochs_and_at_the_end(tmp_path: Path) -> None:
    """At one step an epoch; nothing that was trained is lost."""
    options = ("datamodule.batch_size=1200", "trainer.max_epochs=25", "guards.checkpoint.every_n_epochs=10")
    assert saves(tmp_path, *options) == [(10, 10, 10), (20, 20, 20), (25, 25, 25)]


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


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (6, ()),  # the second of the four batches of the second epoch
        (8, ()),  # the last one
        (3, ("trainer.accumulate_grad_batches=2",)),
        (6, ("guards.fast_loop=null",)),
        (6, ("trainer.val_check_interval=2",)),
    ],
)
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint", "ignore:The dirpath has changed from")
def test_training_goes_on_after_the_batch_at_whose_end_lightning_s_own_checkpoint_was_saved(
    step: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    whole = trained(tmp_path / "run", *options, extra=[ModelCheckpoint(tmp_path / "own", **every)])[0]
    again = ModelCheckpoint(tmp_path / "again", **every)
    resumed = trained(tmp_path / "run", *options, extra=[again], ckpt_path=tmp_path / "own" / f"step={step}.ckpt")[0]
    for key in ("global_step", "state_dict", "optimizer_states", "loops"):
        assert not differences(resumed[key], whole[key]), key


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint", "ignore:The dirpath has changed from")
def test_such_a_checkpoint_is_gone_on_from_in_smaller_batches(tmp_path: Path) -> None:
    every = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    whole = trained(tmp_path / "run", extra=[ModelCheckpoint(tmp_path / "own", **every)])[0]
    smaller = ("datamodule.batch_size=150", "trainer.accumulate_grad_batches=2")
    again = ModelCheckpoint(tmp_path / "again", **every)
    resumed = trained(tmp_path / "run", *smaller, extra=[again], ckpt_path=tmp_path / "own" / "step=6.ckpt")[0]
    assert resumed["global_step"] == 12
    assert resumed["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] == 24
    torch.testing.assert_close(resumed["state_dict"], whole["state_dict"])
