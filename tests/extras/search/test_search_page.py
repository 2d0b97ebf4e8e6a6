"""The page of a search: the best trial, what failed, and Optuna's pictures."""

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


def search(folder: Path, objectives: dict[str, str]) -> Path:
    """Of five trials; the fourth is the best in the first objective, the last has failed."""
    study = open_study(folder, "journal", objectives, NOBODY)
    for number, lr in enumerate(LRS):
        params = {"model.optimizer.lr": lr, "model": "ab"[number % 2]}
        values = [0.1 * number, 10.0 + number][: len(objectives)]
        study.add_trial(create_trial(params=params, distributions=SPACE, values=values, user_attrs={"directory": f"job{number}"}))
    failed: dict[str, Any] = {"params": {"model.optimizer.lr": 0.05, "model": "a"}, "distributions": SPACE}
    study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={"reason": "planted"}, **failed))
    return folder


def page(folder: Path) -> dict[str, Any]:
    """Its blocks by their kind."""
    content = search_page(folder)
    assert content is not None
    kinds = ("text", "list", "table", "picture")
    return content | {kind: [block for block in content["blocks"] if kind in block] for kind in kinds}


def test_a_search_ends_with_its_best_trial_and_optuna_s_pictures(tmp_path: Path) -> None:
    content = page(search(tmp_path, {"val/acc": "max"}))
    assert content["answer"] == "The best of 5 trials: val/acc 0.3 with model.optimizer.lr=0.1 model=b."
    assert content["text"][0]["text"].startswith("5 trials: 4 complete, 1 failed. Optimized: val/acc (max)")
    assert content["table"][0]["columns"] == ["trial", "val/acc", "model.optimizer.lr", "model", "job"]
    assert content["table"][0]["table"][:2] == [["3", "0.3", "0.1", "b", "job3"], ["2", "0.2", "0.01", "a", "job2"]]
    assert content["list"][0]["list"] == ["4 (model.optimizer.lr=0.05 model=a): planted"]
    assert [block["picture"] for block in content["picture"]] == ["history", "importances"]
    assert all(block["draw"]().axes for block in content["picture"])


def test_of_several_objectives_the_trials_that_no_other_beats_come_first(tmp_path: Path) -> None:
    content = page(search(tmp_path, {"val/loss": "min", "wall_time": "max"}))
    best = "val/loss 0, wall_time 10 with model.optimizer.lr=0.0001 model=a"
    assert content["answer"] == f"4 trials of 5 on the Pareto front; the first: {best}."
    assert [block["picture"] for block in content["picture"]] == ["pareto"]
    assert content["picture"][0]["draw"]().axes


def test_a_search_without_results_says_so_and_another_sweep_has_no_such_page(tmp_path: Path) -> None:
    assert search_page(tmp_path) is None
    open_study(tmp_path, "journal", {"val/acc": "max"}, NOBODY)
    assert page(tmp_path)["answer"] == "None of 0 trials is complete: nothing can be said yet."
