"""progress.json: how far a run is, and when it had reached what."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unwatched import unwatched

from lockstep.extras.progress.progress import Progress


def stand_in(folder: Path, epoch: int) -> Any:
    """A trainer of nine epochs of four batches, at the beginning of one."""
    trainer = SimpleNamespace(current_epoch=epoch, max_epochs=9, max_steps=-1, num_training_batches=4, global_step=0)
    trainer.is_global_zero, trainer.distributed_sampler_kwargs, trainer.callbacks = True, None, []
    trainer.default_root_dir, trainer.lightning_module, trainer.callback_metrics = str(folder), SimpleNamespace(), {}
    return trainer


def trained(folder: Path, first: int, last: int, *callbacks: Any) -> list[dict[str, Any]]:
    """The history that a run of epochs `first` to `last` leaves."""
    progress = Progress()
    trainer = stand_in(folder, first)
    trainer.callbacks = callbacks
    progress.setup(trainer, trainer.lightning_module, "fit")
    progress.on_train_start(trainer, trainer.lightning_module)
    for epoch in range(first + 1, last + 1):
        trainer.current_epoch, trainer.callback_metrics = epoch, {"val/acc": epoch / 10}
        progress._log_epoch(trainer)
    return json.loads((folder / "progress.json").read_text())["history"]


def test_history_goes_on_where_a_run_was_continued(tmp_path: Path) -> None:
    """An epoch after the checkpoint is trained again: its first time is forgotten. Seconds add up."""
    first = trained(tmp_path, 0, 3)
    assert [(entry["epoch"], entry["metrics"]) for entry in first] == [(i, {"val/acc": i / 10}) for i in (1, 2, 3)]
    first[1]["seconds"] = 100.0
    (tmp_path / "progress.json").write_text(json.dumps({"history": first}))
    both = trained(tmp_path, 2, 4)
    assert [entry["epoch"] for entry in both] == [1, 2, 3, 4]
    assert both[1]["seconds"] == 100.0 < both[2]["seconds"] <= both[3]["seconds"] < 110.0


@pytest.mark.parametrize("left", ["{", '{"history": [{"epoch": 1}]}'])
def test_a_damaged_file_does_not_end_a_run(tmp_path: Path, left: str) -> None:
    (tmp_path / "progress.json").write_text(left)
    assert [entry["epoch"] for entry in trained(tmp_path, 1, 2)] == [2]


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


def test_it_is_watched_in_all_its_hooks() -> None:
    assert unwatched(Progress) == []
