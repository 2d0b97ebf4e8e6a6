"""A checkpoint's schedule goes on: a run that is configured with another one is refused before its first step."""

import math
from pathlib import Path

import pytest
from in_process import Rates, trained

from lockstep.errors import ConfigError


def test_a_cosine_of_another_length_is_said_and_followed_from_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, path = tmp_path / "run", tmp_path / "run" / "checkpoints" / "last.ckpt"
    options = ("model/lr_scheduler=cosine", "model.optimizer.lr=0.01")
    trained(run, *options, "trainer.max_epochs=1", extra=[first := Rates()])
    steps = len(first.seen)
    trained(run, *options, "trainer.max_epochs=2", ckpt_path=path, extra=[longer := Rates()])
    half = [0.005 * (1 + math.cos(math.pi * step / (2 * steps))) for step in range(steps, 2 * steps)]
    assert longer.seen == pytest.approx(half)
    lines = [line for line in caplog.messages if line.startswith("The schedule's length")]
    assert lines == ["The schedule's length has changed: the learning rate continues at 0.005, not at 0"]


def test_a_cosine_of_the_same_length_goes_on_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ("model/lr_scheduler=cosine", "model.optimizer.lr=0.01", "trainer.max_epochs=2")
    trained(tmp_path / "whole", *options, extra=[whole := Rates()])
    path = tmp_path / "whole" / "checkpoints" / "previous.ckpt"
    trained(tmp_path / "whole", *options, ckpt_path=path, extra=[rest := Rates()])
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert "The schedule's length" not in caplog.text


def test_a_cycle_that_would_have_to_be_longer_is_refused_before_the_first_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("model/lr_scheduler=one_cycle", "model/optimizer=sgd")
    trained(run, *options, "trainer.max_epochs=1")
    path = run / "checkpoints" / "last.ckpt"
    with pytest.raises(ConfigError, match=r"^checkpoint=.*: its OneCycleLR goes on with total_steps=4, here it would have 8; "):
        trained(run, *options, "trainer.max_epochs=2", ckpt_path=path)
