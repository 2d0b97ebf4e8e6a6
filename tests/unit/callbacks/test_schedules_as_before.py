"""A checkpoint's schedule goes on: a run that is configured with another one is refused before its first step."""

from pathlib import Path

import pytest
from capabilities import requires
from in_process import trained

from lockstep.errors import ConfigError


@requires("torch_schedules")
def test_a_cycle_that_would_have_to_be_longer_is_refused_before_the_first_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("model/lr_scheduler=one_cycle", "model/optimizer=sgd")
    trained(run, *options, "trainer.max_epochs=1")
    path = run / "checkpoints" / "last.ckpt"
    with pytest.raises(ConfigError, match=r"^checkpoint=.*: its OneCycleLR goes on with total_steps=4, here it would have 8; "):
        trained(run, *options, "trainer.max_epochs=2", ckpt_path=path)
