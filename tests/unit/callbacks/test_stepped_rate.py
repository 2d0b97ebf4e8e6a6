"""The learning rate that is recorded is that of the optimizer's steps; time is that of the run itself."""

from pathlib import Path

import pytest
from in_process import KeepAll, Rates, prepared

from lockstep.checkpointing import read_checkpoint
from lockstep.runs.results import collect_facts


@pytest.mark.parametrize("is_own", [True, False])
def test_what_was_trained_before_a_checkpoint_counts_for_its_own_run(is_own: bool, tmp_path: Path) -> None:
    """Not for a fork, which has taken its own time alone."""
    run, other = tmp_path / "run", tmp_path / "other"
    datamodule, model, trainer = prepared(run, "trainer.max_epochs=2", extra=[KeepAll(run)])
    trainer.fit(model, datamodule)
    assert collect_facts(trainer)["seconds_before"] == 0.0
    middle = sorted(run.glob("*.ckpt"), key=lambda path: int(path.stem))[5]
    seconds = read_checkpoint("checkpoint", middle)["seconds_trained"]
    datamodule, model, trainer = prepared(run if is_own else other, "trainer.max_epochs=2")
    trainer.fit(model, datamodule, ckpt_path=middle)
    assert collect_facts(trainer)["seconds_before"] == (seconds if is_own else 0.0)
    assert seconds > 0.0


def test_a_test_of_an_earlier_checkpoint_leaves_what_is_recorded_of_the_run(tmp_path: Path) -> None:
    rates, kept = Rates(), tmp_path / "kept"
    kept.mkdir()
    options = ("trainer.max_epochs=3", "model.lr_scheduler.warmup_steps=20")
    datamodule, model, trainer = prepared(tmp_path, *options, extra=[rates, KeepAll(kept)])
    trainer.fit(model, datamodule)
    first = min(kept.glob("*.ckpt"), key=lambda path: int(path.stem))
    trainer.test(model, datamodule, ckpt_path=first, verbose=False)
    assert collect_facts(trainer)["lr"] == max(rates.seen)
    assert rates.seen[-1] > rates.seen[0]
