"""What ends a job of a search by Ray Tune; and what is refused without Ray."""

import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import trained

from hydra_plugins.ray_tune import RayTuneSweeper
from lockstep.errors import ConfigError
from lockstep.extras.ray_cluster.stopping import Generation

GENERATION = "+callbacks.generation={_target_: lockstep.extras.ray_cluster.stopping.Generation, monitor: val/acc, until: 2}"
STOPPING = "+callbacks.stopping={_target_: lockstep.extras.ray_cluster.stopping.Stopping, monitor: val/acc}"


def find_generation(trainer: Any) -> Generation:
    return next(callback for callback in trainer.callbacks if isinstance(callback, Generation))


def test_a_generation_ends_after_its_validations_also_when_it_is_resumed(tmp_path: Path) -> None:
    _, trainer = trained(tmp_path / "run", GENERATION, STOPPING, "test=false")
    value = float(trainer.callback_metrics["val/acc"])
    known = {"last_validation": {"validations": 2, "value": value}}
    assert (trainer.current_epoch, find_generation(trainer).facts()) == (2, known)
    assert find_generation(trainer).ended_by == "the end of its generation, after 2 validations"
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    _, again = trained(tmp_path / "run", GENERATION, STOPPING, "test=false", ckpt_path=last)
    assert (again.current_epoch, find_generation(again).facts()) == (2, known)


def test_without_ray_the_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if there were none
    with pytest.raises(ConfigError) as refusal:
        RayTuneSweeper().setup()
    assert str(refusal.value) == "hydra/sweeper=ray_tune: the library `ray` is not installed: pip install 'lockstep[ray]'"
