"""The saved config of a run, and which starts go on with the run."""

from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import setup_globals
from saved_run import save_run

from lockstep.launchers.environment import RESTARTS
from lockstep.runs import opening
from lockstep.runs.opening import has_begun
from lockstep.runs.record import write_status
from lockstep.runs.saved import read_choices, read_config, read_overrides, read_run_id


def test_a_run_s_config_is_read_as_it_was_written(tmp_path: Path) -> None:
    setup_globals()
    run = save_run(tmp_path / "run", "seed=2", global_batch_size=16, choices={"model": "cnn"}, text="${now:%Y} a: 'b'\n# ü")
    cfg: Any = read_config(run)
    assert (cfg.run_dir, cfg.run_id, cfg.datamodule.global_batch_size, cfg.trainer.devices) == (str(run), "its id", 16, 2)
    assert cfg.text[:2] == "20"  # of the start, for all who read it later
    assert (read_run_id(run), read_overrides(run), read_choices(run)) == ("its id", ["seed=2"], {"model": "cnn"})
    assert "run_dir: ${hydra:runtime.output_dir}" in (run / ".hydra" / "config.yaml").read_text()


def test_a_resumption_changes_values_and_adds_its_overrides(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", "seed=2", "trainer.max_epochs=5", global_batch_size=16, choices={"model": "cnn"})
    save_run(run, "trainer.max_epochs=20", global_batch_size=16, trainer={"devices": 1, "max_epochs": 20})
    again: Any = read_config(run)
    assert (again.trainer.max_epochs, again.run_id) == (20, "its id")
    assert read_overrides(run) == ["seed=2", "trainer.max_epochs=20"]
    assert read_choices(run) == {"model": "cnn"}
    save_run(run, "seed=3", run_id="another")  # in the directory of a run that could not start
    assert (read_overrides(run), read_choices(run)) == (["seed=3"], {})


def test_ranks_that_are_started_again_go_on_with_their_own_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands inside a requeued job see its variable; a node that joins later counts no restarts."""
    run = save_run(tmp_path / "run", "seed=1")
    write_status(run, "failed")
    assert not has_begun(run, ["seed=1"])
    monkeypatch.setattr(opening, "can_resume", lambda: True)
    for restarts, status, has in ((0, "failed", True), (0, "finished", False), (1, "finished", True)):
        monkeypatch.setenv(RESTARTS, str(restarts))
        write_status(run, status)
        assert has_begun(run, ["seed=1"]) == has
        assert not has_begun(run, ["seed=9"])
