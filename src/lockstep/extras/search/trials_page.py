"""The page of a search: its best trials, how it came to them, and which keys mattered. The pictures are Optuna's."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import optuna
import optuna.visualization.matplotlib as plots
from matplotlib import pyplot
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from lockstep.extras.search.study import load_study, read_search, summarize
from lockstep.sweeps.table import shorten

SHOWN = 10  # trials in the table
Block = dict[str, Any]  # of the report's page


@dataclass(frozen=True)
class SearchResult:
    directory: Path

    @cached_property
    def study(self) -> optuna.Study:
        return load_study(self.directory)

    @cached_property
    def trials(self) -> list[FrozenTrial]:
        return self.study.trials

    @property
    def count(self) -> str:
        return f"{len(self.trials)} trial{'' if len(self.trials) == 1 else 's'}"

    @cached_property
    def objectives(self) -> dict[str, str]:
        return (read_search(self.directory) or {})["objectives"]

    @cached_property
    def complete(self) -> list[FrozenTrial]:
        """The best one first; with several objectives, those that no other trial beats in all."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        best = {trial.number for trial in self.study.best_trials} if done else set()
        sign = -1 if "max" in list(self.objectives.values())[:1] else 1
        return sorted(done, key=lambda trial: (trial.number not in best, sign * trial.values[0]))

    @cached_property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))


def trials_page(directory: Path) -> dict[str, Any]:
    """Returns title, answer and blocks for the report."""
    result = SearchResult(directory)
    return {"title": f"Search of the sweep in {directory.name}", "answer": _answer(result), "blocks": [*_blocks(result)]}


def _answer(result: SearchResult) -> str:
    if not result.complete:
        return f"None of {result.count} is complete: nothing can be said yet."
    best = result.complete[0]
    values = ", ".join(f"{name} {value:.4g}" for name, value in zip(result.objectives, best.values, strict=True))
    point = f"{values} with {_point(best)}"
    if len(result.objectives) == 1:
        return f"The best of {result.count}: {point}."
    front = len(result.study.best_trials)
    return f"{front} trial{'' if front == 1 else 's'} of {len(result.trials)} on the Pareto front; the first: {point}."


def _blocks(result: SearchResult) -> Iterator[Block]:
    best = "the best of it is better than it would be on other data: trials were chosen by it"
    modes = ", ".join(f"{name} ({mode})" for name, mode in result.objectives.items())
    yield {"text": f"{result.count}: {summarize(result.trials)}. Optimized: {modes}; {best}."}
    if len(result.complete) > 1:
        yield from _pictures(result)
    if result.complete:
        yield {"heading": "The best trials"}
        columns = ["trial", *result.objectives, *result.keys, "job"]
        yield {"columns": columns, "table": [_row(result, trial) for trial in result.complete[:SHOWN]]}
    if lost := [trial for trial in result.trials if trial.state == TrialState.FAIL]:
        yield {"heading": "Trials that failed"}
        reasons = [shorten(trial.user_attrs.get("reason", "unknown")) for trial in lost]
        yield {"list": [f"{trial.number} ({_point(trial)}): {why}" for trial, why in zip(lost, reasons, strict=True)]}
    yield {"heading": "Where the numbers come from"}
    yield {"list": [f"sweep: {result.directory}", f"Optuna: {optuna.__version__}"]}


def _pictures(result: SearchResult) -> Iterator[Block]:
    study, names = result.study, list(result.objectives)
    if len(names) in (2, 3):
        yield _picture("pareto", "The trials by their objectives", lambda: plots.plot_pareto_front(study, target_names=names))
    if len(names) == 1:
        alt = "Each trial, and the best so far"
        yield _picture("history", alt, lambda: plots.plot_optimization_history(study, target_name=names[0]))
    if len(names) == 1 and len(result.keys) > 1:
        yield {"heading": "Which keys mattered"}
        alt = "The share of each key in what sets the better trials apart"
        evaluator = optuna.importance.PedAnovaImportanceEvaluator
        yield _picture("importances", alt, lambda: plots.plot_param_importances(study, evaluator(), target_name=names[0]))
        yield {"text": "By PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255): in what the better trials differ from the others."}


def _picture(name: str, alt: str, plot: Callable[[], object]) -> Block:
    def draw() -> Figure:
        matplotlib.use("Agg")  # no window, whatever the machine has
        with warnings.catch_warnings(), matplotlib.rc_context():  # Optuna chooses a style for the whole process
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            figure = getattr(plot(), "figure")  # noqa: B009
        figure.set_layout_engine("constrained")  # the names of keys are long
        pyplot.close(figure)
        return figure

    return {"picture": name, "alt": alt, "draw": draw}


def _row(result: SearchResult, trial: FrozenTrial) -> list[str]:
    params = [_short(trial.params.get(key, "")) for key in result.keys]
    return [str(trial.number), *(f"{value:.4g}" for value in trial.values), *params, trial.user_attrs.get("directory", "")]


def _point(trial: FrozenTrial) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.params.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
