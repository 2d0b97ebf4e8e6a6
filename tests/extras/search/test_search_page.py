"""The page of a search: the best trial, what failed, and Optuna's pictures."""

from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from searched import NOBODY

from lockstep.extras.report.write import write_report
from lockstep.extras.search.report_section import Searched, document
from lockstep.extras.search.study import begin

SPACE: dict[str, Any] = {
    "model.optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "model": CategoricalDistribution(["a", "b"]),
}
LRS = (1e-4, 1e-3, 1e-2, 1e-1)


def search(folder: Path, objectives: dict[str, str]) -> Path:
    """Of five trials; the fourth is the best in the first objective, the last has failed."""
    study = begin(folder, "journal", objectives, NOBODY)
    for number, lr in enumerate(LRS):
        params = {"model.optimizer.lr": lr, "model": "ab"[number % 2]}
        values = [0.1 * number, 10.0 + number][: len(objectives)]
        study.add_trial(create_trial(params=params, distributions=SPACE, values=values, user_attrs={"directory": f"job{number}"}))
    failed: dict[str, Any] = {"params": {"model.optimizer.lr": 0.05, "model": "a"}, "distributions": SPACE}
    study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={"reason": "planted"}, **failed))
    return folder


def test_a_search_ends_with_its_best_trial_and_optuna_s_pictures(tmp_path: Path) -> None:
    answer, page = write_report(search(tmp_path, {"val/acc": "max"}))
    assert answer == "The best of 5 trials: val/acc 0.3 with model.optimizer.lr=0.1 model=b."
    assert {path.name for path in page.parent.glob("*.png")} == {"history.png", "importances.png"}
    text = (page.parent / "report.md").read_text()
    assert "5 trials: 4 complete, 1 failed. Optimized: val/acc (max)" in text
    assert "| 3 | 0.3 | 0.1 | b | job3 |\n| 2 | 0.2 | 0.01 | a | job2 |" in text
    assert "- 4 (model.optimizer.lr=0.05 model=a): planted" in text
    assert page.read_text().count("<svg") == 2


def test_of_several_objectives_the_trials_that_no_other_beats_come_first(tmp_path: Path) -> None:
    answer, page = write_report(search(tmp_path, {"val/loss": "min", "wall_time": "max"}))
    best = "val/loss 0, wall_time 10 with model.optimizer.lr=0.0001 model=a"
    assert answer == f"4 trials of 5 on the Pareto front; the first: {best}."
    assert {path.name for path in page.parent.glob("*.png")} == {"pareto.png"}


def test_a_search_that_has_found_nothing_says_so(tmp_path: Path) -> None:
    begin(tmp_path, "journal", {"val/acc": "max"}, NOBODY)
    assert document(Searched(tmp_path)).answer == "None of 0 trials is complete: nothing can be said yet."
