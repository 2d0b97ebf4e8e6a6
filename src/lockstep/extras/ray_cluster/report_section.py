"""What a population brings to a report; imports nothing heavy, because every sweep's report asks."""

from pathlib import Path
from typing import Any

from lockstep.config.overrides import override_key, unquote
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.view import JobView, SweepView

UNTIL, FORK = "callbacks.generation.until", "fork"


def population_page(sweep_dir: Path) -> dict[str, Any] | None:
    """Returns the page of a population, with the jobs that the best one has come from, or None if the sweep has none."""
    view = SweepView(Manifest(sweep_dir), is_held=False)
    if not any(_value(job, UNTIL) for job in view.jobs):
        return None
    line, failed = _lineage(view), view.counts["failed"]
    blocks: list[dict[str, Any]] = [{"text": f"{len(view.jobs)} jobs, each a part of a training; {failed} have failed."}]
    answer = "No job has finished: nothing can be said yet."
    if line:
        answer = f"The best of the population: {_number(line[-1].metric)} after {len(line)} generations."
        rows = [[str(job.number), _values(job), _number(job.metric), job.directory.name] for job in line]
        blocks += [{"heading": "How it came about"}, {"columns": ["job", "values", "metric", "directory"], "table": rows}]
    return {"title": f"Population of the sweep in {sweep_dir.name}", "answer": answer, "blocks": blocks}


def _lineage(view: SweepView) -> list[JobView]:
    """The best job, and before it those that it is a fork of, the first one first."""
    jobs, line, one = {job.directory.name: job for job in view.jobs}, [], view.best
    while one is not None:
        line.insert(0, one)
        one = jobs.get(Path(unquote(_value(one, FORK) or "")).name)
    return line


def _value(job: JobView, key: str) -> str | None:
    return next((item.partition("=")[2] for item in job.entry["overrides"] if override_key(item) == key), None)


def _values(job: JobView) -> str:
    return " ".join(item for item in job.overrides if override_key(item) not in (UNTIL, FORK))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
