"""A search's directory with one trial under way, whose job is still to be run."""

from pathlib import Path
from typing import Any

from optuna import Study

from lockstep.search.study import POINT, open_study
from lockstep.sweeps.jobs import Job

NOBODY = {"_target_": "optuna.pruners.NopPruner"}


def search_with_a_job(folder: Path, pruner: dict[str, Any]) -> tuple[Study, Path]:
    """The study, for the best val/acc, and the directory of its first trial."""
    folder.mkdir()
    study = open_study(folder, "val/acc", "max", pruner)
    overrides = ["model.optimizer.lr=0.01"]
    study.ask().set_user_attr(POINT, overrides)
    run_dir = folder / "lr=0.01_abc"
    Job(run_dir, "abc", overrides, 1, "val/acc", "max").make()
    return study, run_dir


def values_in(study: Study) -> dict[int, float]:
    """What the first trial has reported, by the number of validations before it."""
    return study.trials[0].intermediate_values
