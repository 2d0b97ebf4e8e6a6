"""progress.json: how far a run is."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from terminals import terminal
from unwatched import unwatched

from lockstep.extras.progress.progress import Progress


def stand_in(folder: Path, epoch: int) -> Any:
    """A trainer of nine epochs of four batches, at the beginning of one."""
    trainer = SimpleNamespace(current_epoch=epoch, max_epochs=9, max_steps=-1, num_training_batches=4, global_step=0)
    trainer.is_global_zero, trainer.distributed_sampler_kwargs, trainer.callbacks = True, None, []
    trainer.default_root_dir, trainer.lightning_module, trainer.callback_metrics = str(folder), SimpleNamespace(), {}
    return trainer


def test_between_epochs_it_says_the_step_the_share_and_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of four batches, a batch every five seconds: after the first two every second one is due."""
    clock = [100.0]
    monkeypatch.setattr("lockstep.extras.progress.progress.time.monotonic", lambda: clock[0])
    progress, model, trainer = Progress(), SimpleNamespace(), stand_in(tmp_path, 0)
    trainer.max_epochs = 2
    progress.setup(trainer, model, "fit")
    progress.on_train_start(trainer, model)
    seen = []
    for batch in range(8):
        trainer.global_step, clock[0] = batch + 1, clock[0] + 5.0
        if batch == 4:
            trainer.current_epoch, trainer.callback_metrics = 1, {"val/acc": 0.5}
            progress._log_epoch(trainer)
        progress.on_train_batch_end(trainer, model, None, None, batch % 4)
        content = json.loads((tmp_path / "progress.json").read_text())
        seen.append((content["epoch"], content["step"], content["share"], content["seconds_left"]))
    assert seen[:4] == [(0, 1, 0.125, None), (0, 2, 0.25, 30.0), (0, 2, 0.25, 30.0), (0, 4, 0.5, 20.0)]
    assert seen[4:] == [(1, 5, 0.5, pytest.approx(80 / 3))] * 2 + [(1, 7, 0.875, 5.0)] * 2


def test_a_bar_moves_in_an_epoch_of_few_batches_and_shows_first_what_is_monitored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten batches of a second each, where a refresh is due after 50; beside the bar there is no room for six metrics."""
    clock = [100.0]
    monkeypatch.setattr("lockstep.extras.progress.progress.time.monotonic", lambda: clock[0])
    model, trainer = SimpleNamespace(), stand_in(tmp_path, 0)
    trainer.num_training_batches, trainer.checkpoint_callbacks = 10, [SimpleNamespace(monitor="val/acc")]
    trainer.callback_metrics = {f"{split}/{name}": 0.123456 for split in ("train", "val") for name in ("loss", "acc", "top5")}
    with terminal(80, 24) as (seen, stream):
        monkeypatch.setattr("sys.stdout", stream)
        progress = Progress(refresh_rate=50)
        progress.setup(trainer, model, "fit")
        progress.on_train_start(trainer, model)
        progress.on_train_epoch_start(trainer, model)
        for batch in range(10):
            clock[0] += 1.0
            progress.on_train_batch_end(trainer, model, None, None, batch)
        drawn = [line for line in seen().split("\r") if line.strip()]
    for batches in range(1, 11):
        assert any(f"| {batches}/10 [" in line for line in drawn), drawn
    assert all(len(line.rstrip("\n")) <= 80 for line in drawn)
    assert ", val/acc=0.1235" in drawn[-1]
    assert all(re.search(r"=0\.1235\]\s*$", line) for line in drawn if "=" in line), drawn  # no metric is cut


def test_an_epoch_s_line_says_every_metric_and_breaks_between_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress, model, trainer = Progress(), SimpleNamespace(), stand_in(tmp_path, 0)
    trainer.checkpoint_callbacks = []
    progress.setup(trainer, model, "fit")
    progress.on_train_start(trainer, model)
    trainer.current_epoch, trainer.callback_metrics = 1, {f"val/metric_{i}": 0.5 for i in range(9)}
    progress._log_epoch(trainer)
    (record,) = caplog.records
    metrics = [f"val/metric_{i} 0.5" for i in range(9)]
    assert getattr(record, "cells") == ["epoch 1/9", "step 0", *metrics]  # noqa: B009
    assert record.message == "  ".join(["epoch 1/9", "step 0", *metrics])


def test_it_is_watched_in_all_its_hooks() -> None:
    assert unwatched(Progress) == []
