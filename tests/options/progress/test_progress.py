"""progress.json: how far a run is."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.callbacks.monitors import Progress


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
    monkeypatch.setattr("lockstep.callbacks.monitors.time.monotonic", lambda: clock[0])
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
