"""Where Hydra's callbacks end a sweep."""

import contextlib

import pytest
from omegaconf import OmegaConf

from lockstep.sweeps.hydra_callback import EndSweep
from lockstep.sweeps.sweep import Sweep


def test_a_sweep_that_is_broken_off_has_not_come_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra 1.4 calls on_multirun_end in a `finally`, 1.3 after the last job alone (hydra/_internal/hydra.py)."""
    ended: list[str] = []
    monkeypatch.setattr(Sweep, "end", lambda: ended.append("end"))
    config = OmegaConf.create()
    with contextlib.suppress(ValueError), contextlib.ExitStack() as stack:
        stack.callback(EndSweep().on_multirun_end, config)
        raise ValueError("a job is refused")
    assert ended == []
    EndSweep().on_multirun_end(config)
    assert ended == ["end"]
