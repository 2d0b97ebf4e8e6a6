"""The page of a search: its best trials, how it came to them, and which keys mattered. The pictures are Optuna's."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import matplotlib
import optuna
import optuna.visualization.matplotlib as plots
from matplotlib import pyplot
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from lockstep.extras.report.choice import count
from lockstep.extras.report.document import Block, Document, Heading, Items, Picture, Table, Text
from lockstep.extras.search.study import about, study_in, told
from lockstep.sweeps.table import shorten

SHOWN = 10  # trials in the table


@dataclass(frozen=True)
class Searched:
    directory: Path

    @cached_property
    def study(self) -> optuna.Study:
        return study_in(self.directory)

    @cached_property
    def trials(self) -> list[FrozenTrial]:
        return self.study.trials

    @cached_property
    def objectives(self) -> dict[str, str]:
        return (about(self.directory) or {})["objectives"]

    @cached_property
    def complete(self) -> list[FrozenTrial]:
        """The best one first; of several objectives those first that no other beats in all."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        best = {trial.number for trial in self.study.best_trials} if done else set()
        sign = -1 if "max" in list(self.objectives.values())[:1] else 1
        return sorted(done, key=lambda trial: (trial.number not in best, sign * trial.values[0]))

    @cached_property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))


def document(found: Searched) -> Document:
    return Document(f"Search of the sweep in {found.directory.name}", _answer(found), [*_blocks(found)])


def _answer(found: Searched) -> str:
    if not found.complete:
        return f"None of {count(len(found.trials), 'trial')} is complete: nothing can be said yet."
    best = found.complete[0]
    values = ", ".join(f"{name} {value:.4g}" for name, value in zip(found.objectives, best.values, strict=True))
    said = f"{values} with {_point(best)}"
    if len(found.objectives) == 1:
        return f"The best of {count(len(found.trials), 'trial')}: {said}."
    return f"{count(len(found.study.best_trials), 'trial')} of {len(found.trials)} on the Pareto front; the first: {said}."


def _blocks(found: Searched) -> Iterator[Block]:
    best = "the best of it is better than it would be on other data: trials were chosen by it"
    modes = ", ".join(f"{name} ({mode})" for name, mode in found.objectives.items())
    yield Text(f"{count(len(found.trials), 'trial')}: {told(found.trials)}. Optimized: {modes}; {best}.")
    if len(found.complete) > 1:
        yield from _pictures(found)
    if found.complete:
        yield Heading("The best trials")
        columns = ("trial", *found.objectives, *found.keys, "job")
        yield Table(columns, [_row(found, trial) for trial in found.complete[:SHOWN]])
    if lost := [trial for trial in found.trials if trial.state == TrialState.FAIL]:
        yield Heading("Trials that failed")
        yield Items([f"{trial.number} ({_point(trial)}): {shorten(trial.user_attrs.get('reason', 'unknown'))}" for trial in lost])
    yield Heading("Where the numbers come from")
    yield Items([f"sweep: {found.directory}", f"Optuna: {optuna.__version__}"])


def _pictures(found: Searched) -> Iterator[Block]:
    study, names = found.study, list(found.objectives)
    if len(names) in (2, 3):
        yield _picture("pareto", "The trials by their objectives", lambda: plots.plot_pareto_front(study, target_names=names))
    if len(names) == 1:
        words = "Each trial, and the best so far"
        yield _picture("history", words, lambda: plots.plot_optimization_history(study, target_name=names[0]))
    if len(names) == 1 and len(found.keys) > 1:
        yield Heading("Which keys mattered")
        words = "The share of each key in what sets the better trials apart"
        evaluator = optuna.importance.PedAnovaImportanceEvaluator
        yield _picture("importances", words, lambda: plots.plot_param_importances(study, evaluator(), target_name=names[0]))
        yield Text("By PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255): in what the better trials differ from the others.")


def _picture(name: str, words: str, plot: Callable[[], object]) -> Picture:
    def draw() -> Figure:
        matplotlib.use("Agg")  # no window, whatever the machine has
        with warnings.catch_warnings(), matplotlib.rc_context():  # Optuna chooses a style for the whole process
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            figure = getattr(plot(), "figure")  # noqa: B009
        figure.set_layout_engine("constrained")  # the names of keys are long
        pyplot.close(figure)
        return figure

    return Picture(name, words, draw)


def _row(found: Searched, trial: FrozenTrial) -> list[str]:
    params = [_short(trial.params.get(key, "")) for key in found.keys]
    return [str(trial.number), *(f"{value:.4g}" for value in trial.values), *params, trial.user_attrs.get("directory", "")]


def _point(trial: FrozenTrial) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in trial.params.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
