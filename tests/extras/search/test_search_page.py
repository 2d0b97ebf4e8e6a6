"""The page of a search: the best trials, and what failed."""

from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from searched import NOBODY

from lockstep.extras.search.report_section import search_page
from lockstep.extras.search.study import open_study

SPACE: dict[str, Any] = {
    "model.optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "model": CategoricalDistribution(["a", "b"]),
}
LRS = (1e-4, 1e-3, 1e-2, 1e-1)


def search(folder: Path) -> Path:
    """Of five trials; the fourth is the best, the last has failed."""
    study = open_study(folder, "val/acc", "max", NOBODY)
    for number, lr in enumerate(LRS):
        params, directory = {"model.optimizer.lr": lr, "model": "ab"[number % 2]}, {"directory": f"job{number}"}
        study.add_trial(create_trial(params=params, distributions=SPACE, value=0.1 * number, user_attrs=directory))
    failed: dict[str, Any] = {"params": {"model.optimizer.lr": 0.05, "model": "a"}, "distributions": SPACE}
    study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={"reason": "planted"}, **failed))
    return folder


def page(folder: Path) -> dict[str, Any]:
    """Its blocks by their kind."""
    content = search_page(folder)
    assert content is not None
    kinds = ("text", "list", "table")
    return content | {kind: [block for block in content["blocks"] if kind in block] for kind in kinds}


def test_a_search_ends_with_its_best_trials_and_what_failed(tmp_path: Path) -> None:
    content = page(search(tmp_path))
    assert content["answer"] == "The best of 5 trials: val/acc 0.3 with model.optimizer.lr=0.1 model=b."
    assert content["text"][0]["text"].startswith("5 trials: 4 complete, 1 failed. Optimized: val/acc (max)")
    assert content["table"][0]["columns"] == ["trial", "val/acc", "model.optimizer.lr", "model", "job"]
    assert content["table"][0]["table"][:2] == [["3", "0.3", "0.1", "b", "job3"], ["2", "0.2", "0.01", "a", "job2"]]
    assert content["list"][0]["list"] == ["4 (model.optimizer.lr=0.05 model=a): planted"]


def test_a_search_without_results_says_so_and_another_sweep_has_no_such_page(tmp_path: Path) -> None:
    assert search_page(tmp_path) is None
    open_study(tmp_path, "val/acc", "max", NOBODY)
    assert page(tmp_path)["answer"] == "None of 0 trials is complete: nothing can be said yet."
