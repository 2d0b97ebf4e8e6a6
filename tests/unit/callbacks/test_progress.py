"""progress.json: how far a run is, and when it had reached what."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.callbacks.progress import Progress


def trained(folder: Path, first: int, last: int) -> list[dict[str, Any]]:
    """The history that a run of epochs `first` to `last` leaves."""
    progress = Progress()
    trainer: Any = SimpleNamespace(
        current_epoch=first, max_epochs=9, global_step=0, is_global_zero=True, distributed_sampler_kwargs=None, callbacks=[]
    )
    trainer.default_root_dir, trainer.lightning_module, trainer.callback_metrics = str(folder), SimpleNamespace(), {}
    progress.setup(trainer, trainer.lightning_module, "fit")
    progress.on_train_start(trainer, trainer.lightning_module)
    for epoch in range(first + 1, last + 1):
        trainer.current_epoch, trainer.callback_metrics = epoch, {"val/acc": epoch / 10}
        progress._say_epoch(trainer)
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


@pytest.mark.parametrize("left", ["{", '{"history": 3}', '{"history": [{"epoch": 1}]}', '{"epoch": 2}'])
def test_a_damaged_file_does_not_end_a_run(tmp_path: Path, left: str) -> None:
    (tmp_path / "progress.json").write_text(left)
    assert [entry["epoch"] for entry in trained(tmp_path, 1, 2)] == [2]


def test_a_run_from_the_beginning_does_not_look_back(tmp_path: Path) -> None:
    trained(tmp_path, 0, 2)
    assert [entry["epoch"] for entry in trained(tmp_path, 0, 1)] == [1]
