"""A search's directory with one trial under way, whose job is still to be run."""

from pathlib import Path
from typing import Any

from optuna import Study

from lockstep.extras.search.study import POINT, open_study
from lockstep.sweeps.jobs import Job
from lockstep.sweeps.sweep_jobs import JobView

NOBODY = {"_target_": "optuna.pruners.NopPruner"}


def search_with_a_job(folder: Path, pruner: dict[str, Any]) -> tuple[Study, Path]:
    """The study, for the best val/acc, and the directory of its first trial."""
    folder.mkdir()
    study = open_study(folder, "val/acc", "max", pruner)
    overrides = ["model.optimizer.lr=0.01"]
    study.ask().set_user_attr(POINT, overrides)
    run_dir = folder / "lr=0.01_abc"
    job = Job("abc", (overrides[0],), run_dir, "cpu", 1, 1, "val/acc", "max", ("python",))
    JobView.of(job, 0).make(job)
    return study, run_dir


def values_in(study: Study) -> dict[int, float]:
    """What the first trial has reported, by the number of validations before it."""
    return study.trials[0].intermediate_values
