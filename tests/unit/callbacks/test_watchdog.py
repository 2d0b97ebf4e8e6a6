"""What the watchdog says of progress, and which limit it sets: a first batch may take longer."""

from pathlib import Path

import pytest
from in_process import prepared

from lockstep.launchers.heartbeat import HEARTBEAT

FIRST, LATER = 1800, 600


def test_the_longer_limit_holds_until_a_batch_of_each_stage_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[tuple[str, float]] = []
    monkeypatch.setattr(HEARTBEAT, "beat", lambda where, limit: beats.append((where, limit)))
    dog = f"guards.watchdog={{_target_:lockstep.callbacks.Watchdog,seconds:{LATER},seconds_to_first_batch:{FIRST}}}"
    few = ("trainer.max_epochs=2", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=2")
    datamodule, model, trainer = prepared(tmp_path, dog, *few)
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    assert [where for where, limit in beats if limit != LATER] == [
        *("before the first batch to fit", "in training batch 1 of epoch 1"),
        *("before the first validation batch of epoch 1", "before the first batch to test"),
    ]
    assert {limit for _, limit in beats} == {FIRST, LATER}
    others = [where for where, limit in beats if limit == LATER]
    for epoch in (1, 2):
        assert {f"after training batch {batch} of epoch {epoch}" for batch in (1, 2)} <= {*others}
        assert {f"in validation, in epoch {epoch}", f"after validation, in epoch {epoch}"} <= {*others}
    assert others[-4:] == ["at the end of fit", "in the test", "in the test", "at the end of test"]
