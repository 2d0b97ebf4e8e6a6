"""A process that makes no progress ends, says where it was, and leaves the stacks of its threads."""

import json
import multiprocessing
import sys
import time
from pathlib import Path

import pytest
from faults import Fault
from fits import prepared
from lightning import Callback

from lockstep.callbacks import Watchdog, watchdog
from lockstep.runs import record


def hang(folder: Path) -> None:
    record.write_status(folder, "running")
    sys.stderr = (folder / "errors").open("w")
    datamodule, model, trainer = prepared(
        folder, "guards.watchdog={_target_:lockstep.callbacks.Watchdog,seconds:1}", extra=[Fault(0, "hang", batch=2)]
    )
    trainer.fit(model, datamodule)


@pytest.mark.slow
def test_a_process_that_hangs_ends_with_its_stacks(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=hang, args=(tmp_path,))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        pytest.fail("it hangs")
    assert process.exitcode == 1
    status = json.loads((tmp_path / "status.json").read_text())
    reason = "rank 0: no progress for 1 s, after training batch 1 of epoch 0; the stacks of its threads are in train.log"
    assert (status["status"], status["reason"], status["rank"]) == ("failed", reason, 0)
    log = (tmp_path / "train.log").read_text()
    assert log.startswith(reason)
    assert "faults.py" in log  # where it hangs
    assert log.count("hread 0x") >= 2
    assert (tmp_path / "errors").read_text() == f"The run failed: {reason}. Logs: {tmp_path}\n"


def test_progress_keeps_it_quiet_and_it_ends_with_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five batches of 0.4 s each, and one second allowed."""
    monkeypatch.setattr(watchdog.os, "_exit", lambda _: pytest.fail("ended"))

    class Sleepy(Callback):
        def on_train_batch_start(self, *_: object) -> None:
            time.sleep(0.4)

    dog = Watchdog(seconds=1)
    datamodule, model, trainer = prepared(tmp_path, "trainer.max_epochs=1", "datamodule.batch_size=250", extra=[Sleepy(), dog])
    trainer.fit(model, datamodule)
    assert dog._over.is_set()
    assert not (tmp_path / "train.log").exists()
