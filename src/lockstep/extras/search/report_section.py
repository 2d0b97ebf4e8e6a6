"""The page of a search in a report: its best trials, and those that failed. Imports Optuna for a search alone."""

from pathlib import Path
from typing import Any

from lockstep.extras.search import STUDY
from lockstep.sweeps.table import shorten

SHOWN = 10  # trials in the table
_BIAS = "the best of it is better than it would be on other data: trials were chosen by it"


def search_page(sweep_dir: Path) -> dict[str, Any] | None:
    """Return title, answer and blocks, or None if the sweep is no search."""
    if not (sweep_dir / STUDY).is_file():
        return None
    from lockstep.extras.search.study import complete_trials, load_study, optimized_metric, summarize

    study = load_study(sweep_dir)
    (metric, mode), trials, complete = optimized_metric(study), study.trials, complete_trials(study)
    count = f"{len(trials)} trial{'' if len(trials) == 1 else 's'}"
    answer = f"None of {count} is complete: nothing can be said yet."
    blocks: list[dict[str, Any]] = [{"text": f"{count}: {summarize(trials)}. Optimized: {metric} ({mode}); {_BIAS}."}]
    if complete:
        answer = f"The best of {count}: {metric} {complete[0].value:.4g} with {_point(complete[0].params)}."
        keys = [*dict.fromkeys(key for trial in complete for key in trial.params)]
        values = [[_short(one.params.get(key, "")) for key in keys] for one in complete[:SHOWN]]
        jobs = [one.user_attrs.get("directory", "") for one in complete]
        rows = [[str(one.number), f"{one.value:.4g}", *own, job] for one, own, job in zip(complete, values, jobs, strict=False)]
        blocks += [{"heading": "The best trials"}, {"columns": ["trial", metric, *keys, "job"], "table": rows}]
    if lost := [trial for trial in trials if trial.state.name == "FAIL"]:
        reasons = [f"{one.number} ({_point(one.params)}): {shorten(one.user_attrs.get('reason', 'unknown'))}" for one in lost]
        blocks += [{"heading": "Trials that failed"}, {"list": reasons}]
    return {"title": f"Search of the sweep in {sweep_dir.name}", "answer": answer, "blocks": blocks}


def _point(params: dict[str, Any]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in params.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
