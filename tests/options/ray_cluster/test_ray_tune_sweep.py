"""`python train.py -m sweep=ray_tune`: a whole search."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from commands import ROOT, python

from lockstep.search.study import load_study
from lockstep.sweeps.jobs import SweepJobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
SMALL = ("trainer=cpu", "model=mlp", "datamodule.batch_size=256", "trainer.max_epochs=2", "hydra.sweeper.n_trials=3")


def test_jobs_that_asha_gives_up_end_as_pruned_ones(tmp_path: Path) -> None:
    done = python(ROOT / "train.py", "-m", "sweep=ray_tune", *SMALL, "hydra.sweep.dir=sweep", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    reasons = Counter(job.reason for job in SweepJobs(tmp_path / "sweep").jobs.values())
    assert reasons == {"trainer.max_epochs=2": 2, "pruned after 1 validations": 1}  # the second is the worst after an epoch
    trials = load_study(tmp_path / "sweep").trials
    assert [len(trial.intermediate_values) for trial in trials if trial.state.name == "COMPLETE"] == [2, 2]
