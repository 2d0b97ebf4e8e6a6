"""What the watchdog says of progress, and which limit it sets: a first batch may take longer."""

from pathlib import Path
from typing import Any

import pytest
from in_process import prepared
from lightning import Callback, LightningModule, Trainer

from lockstep.callbacks import Watchdog
from lockstep.launchers.heartbeat import HEARTBEAT

FIRST, LATER = 1800, 600


def test_the_longer_limit_holds_until_a_batch_of_each_stage_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dict[str, Any]()
    now = ["", 0.0]
    monkeypatch.setattr(HEARTBEAT, "beat", lambda where, limit: now.__setitem__(slice(None), [where, limit]))

    class Asks(Callback):
        """After the watchdog, in the same hooks."""

        def note(self, hook: str) -> None:
            limits.setdefault(hook, []).append(now[1])

        def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
            self.note(f"setup to {stage.lower()}")

        def on_train_batch_start(self, *_: object) -> None:
            self.note("training")

        def on_validation_start(self, *_: object) -> None:
            self.note("validation")

        def on_validation_end(self, *_: object) -> None:
            self.note("after validation")

        def on_test_batch_start(self, *_: object) -> None:
            self.note("test")

        def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
            self.note(f"teardown of {stage.lower()}")

    dog = f"guards.watchdog={{_target_:lockstep.callbacks.Watchdog,seconds:{LATER},seconds_to_first_batch:{FIRST}}}"
    few = ("trainer.max_epochs=2", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=2")
    datamodule, model, trainer = prepared(tmp_path, dog, *few)
    assert any(isinstance(callback, Watchdog) for callback in trainer.callbacks)
    trainer.callbacks.append(Asks())
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    assert limits == {
        "setup to fit": [FIRST],
        "training": [FIRST, LATER, LATER, LATER],
        "validation": [FIRST, LATER],
        "after validation": [LATER, LATER],
        "teardown of fit": [LATER],
        "setup to test": [FIRST],
        "test": [FIRST, LATER],
        "teardown of test": [LATER],
    }
