"""What came of a sweep: results.csv of all its jobs, and results.md, also with means over seeds and folds."""

import csv
import io
import itertools
import logging
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box

from lockstep.atomic_files import replace_text
from lockstep.console import table, wide_console
from lockstep.sweeps.job_directory import RECORDED
from lockstep.sweeps.jobs import REPEATS, varying
from lockstep.sweeps.table import shorten
from lockstep.sweeps.view import JobView, SweepView

log = logging.getLogger(__name__)


def write_results(view: SweepView) -> None:
    directory = view.sweep_jobs.directory
    swept = varying([job.entry["overrides"] for job in view.jobs])
    results = [_result(job, swept) for job in view.jobs]
    names = [*dict.fromkeys(itertools.chain(*results))]
    tables = [_markdown(names[1:], results), *_repeats(view.jobs, results, [name for name in swept if name not in REPEATS])]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    for path, text in ((directory / "results.csv", rows.getvalue()), (directory / "results.md", "\n".join(tables))):
        try:
            replace_text(path, text)
        except OSError as error:  # the sweep ends with its table all the same
            log.warning(f"{path} can't be written ({error.strerror})")


def _result(job: JobView, swept: Sequence[str]) -> dict[str, Any]:
    values = dict(override.partition("=")[::2] for override in job.entry["overrides"])
    result = {"key": job.key, "directory": job.entry["directory"], "status": job.status}
    result |= {name: values.get(name) for name in swept} | {"metric": job.entry["metric"]}
    result |= {name: job.record.get(name) for name in RECORDED}
    result |= {name: value for name, value in job.record.get("metrics", {}).items() if name not in result}  # lr, say
    return result | {"reason": job.entry["reason"] and shorten(job.entry["reason"])}


def _repeats(jobs: Sequence[JobView], results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Mean and standard deviation of the metric over seeds or folds, where there are several: the best mean first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    entries = {job.key: job.entry for job in jobs}
    for job, result in zip(jobs, results, strict=True):
        if job.entry["metric"] is not None:
            groups.setdefault(job.entry.get("repetition", job.key), []).append(result)

    def place(row: dict[str, Any]) -> tuple[str, float]:
        entry = entries[row["key"]]
        return entry["optimized_metric"], -row["mean"] if entry.get("optimized_mode") == "max" else row["mean"]

    if all(len(group) < 2 for group in groups.values()):
        return []
    rows = []
    for group in groups.values():
        metrics = [result["metric"] for result in group]
        spread = statistics.stdev(metrics) if len(metrics) > 1 else None
        rows.append(group[0] | {"runs": len(metrics), "mean": statistics.mean(metrics), "standard deviation": spread})
    return [_markdown([*names, "runs", "mean", "standard deviation"], sorted(rows, key=place))]


def _markdown(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    text = io.StringIO()
    wide_console(text).print(table(cells, names, box=box.MARKDOWN))
    return text.getvalue().strip() + "\n"


def _cell(value: Any) -> str:
    """One line without the column's border."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
