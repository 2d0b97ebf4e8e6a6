"""progress.json: how far a run is."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unwatched import unwatched

from lockstep.callbacks.progress import Progress


def stand_in(folder: Path, epoch: int) -> Any:
    """A trainer of nine epochs of four batches, at the beginning of one."""
    trainer = SimpleNamespace(current_epoch=epoch, max_epochs=9, max_steps=-1, num_training_batches=4, global_step=0)
    trainer.is_global_zero, trainer.distributed_sampler_kwargs, trainer.callbacks = True, None, []
    trainer.default_root_dir, trainer.lightning_module, trainer.callback_metrics = str(folder), SimpleNamespace(), {}
    trainer.progress_bar_metrics, trainer.checkpoint_callbacks = {}, []
    return trainer


def test_between_epochs_it_says_the_step_the_share_and_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of four batches, a batch every five seconds: every second one is due."""
    clock = [100.0]
    monkeypatch.setattr("lockstep.callbacks.progress.time.monotonic", lambda: clock[0])
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
    assert seen[:4] == [(0, 1, 0.125, None)] * 2 + [(0, 3, 0.375, 25.0)] * 2
    assert seen[4:] == [(1, 5, 0.5, pytest.approx(80 / 3))] * 2 + [(1, 7, 0.875, 5.0)] * 2


def test_the_bar_counts_epochs_from_one(tmp_path: Path) -> None:
    progress, trainer, model = Progress(), stand_in(tmp_path, 0), SimpleNamespace()
    progress.setup(trainer, model, "fit")
    progress.on_train_start(trainer, model)
    progress.on_train_epoch_start(trainer, model)
    assert progress.train_progress_bar.desc == "epoch 1/9: "


@pytest.mark.parametrize(("shown", "line"), [({"loss": 0.5}, "loss 0.5  val/acc 1"), ({}, "grad 2  loss 0.5  val/acc 1")])
def test_an_epoch_s_line_has_what_the_bar_has(
    shown: dict[str, float], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress, trainer = Progress(), stand_in(tmp_path, 0)
    progress.on_train_start(trainer)
    trainer.current_epoch, trainer.global_step, trainer.callback_metrics = 1, 4, {"loss": 0.5, "grad": 2.0, "val/acc": 1.0}
    trainer.progress_bar_metrics, trainer.checkpoint_callbacks = shown, [SimpleNamespace(monitor="val/acc")]
    with caplog.at_level("INFO"):
        progress._log_epoch(trainer)
    assert caplog.messages == [f"epoch 1/9  step 4  {line}"]
    assert json.loads((tmp_path / "progress.json").read_text())["metrics"]["grad"] == 2.0


def test_it_is_watched_in_all_its_hooks() -> None:
    assert unwatched(Progress) == []
