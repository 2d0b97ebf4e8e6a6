"""A job is a run whose config is there before it begins; another sweep process may have written that."""

from dataclasses import replace
from pathlib import Path

import fake_sweep
from omegaconf import OmegaConf
from saved_run import CONFIG, save_run

from lockstep.sweeps.local import _is_made_here


def test_a_job_that_a_killed_sweep_had_made_goes_on_by_its_own_config(tmp_path: Path) -> None:
    """It was handed a config without the run's id: "belongs to an earlier run"."""
    hydra = {"overrides": {"task": []}, "runtime": {"choices": {}}}
    one = replace(fake_sweep.job(tmp_path, 1), composed=OmegaConf.create(CONFIG | {"run_id": None, "hydra": hydra}))
    save_run(one.directory, run_id="id")
    assert not _is_made_here(one)
    assert one.composed is not None
    one.composed.run_id = "id"
    assert _is_made_here(one)
    (one.directory / "status.json").write_text('{"status": "running"}')
    assert not _is_made_here(one)
