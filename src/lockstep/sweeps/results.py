"""What came of a sweep: its best jobs on the terminal, results.csv and results.md."""

import csv
import io
import itertools
import json
import shlex
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console

from lockstep.atomic_files import replace_text
from lockstep.console import table
from lockstep.sweeps.job_directory import RECORDED, read_all_metadata, read_record
from lockstep.sweeps.jobs import REPEATS, flat, varying
from lockstep.sweeps.manifest import UNREADABLE, Manifest
from lockstep.sweeps.states import FAILED, FINISHED
from lockstep.sweeps.table import print_table, shorten
from lockstep.sweeps.view import SweepView


def write_results(manifest: Manifest, keys: Sequence[str]) -> None:
    """Shows the jobs `keys` sorted by their metric, failures last, and writes results.csv and results.md of all jobs."""
    directory = manifest.directory
    swept = varying([job["overrides"] for job in manifest.jobs.values()])
    edited = edits(manifest)
    results = [_result(key, job, manifest, swept) | edited.get(key, {}) for key, job in _ranked(manifest)]
    unknown = {"key": None, "repetition": None, "metric": None, "status": FAILED, "reason": UNREADABLE}
    results += [unknown | {"directory": name} for name in manifest.unreadable]
    differing = [*swept, *dict.fromkeys(name for values in edited.values() for name in values)]
    names = [name for name in dict.fromkeys(itertools.chain(*results)) if name != "repetition"]
    replace_text(directory / "results.csv", _csv(names, results))
    tables = [_markdown(names[1:], results), *_repeats(results, [name for name in differing if name not in REPEATS])]
    replace_text(directory / "results.md", "\n".join(tables))
    view = SweepView(manifest, is_held=False, keys=[result["key"] for result in results if result["key"] in keys])
    print_table(view)
    if view.best is not None:
        print(f"\nbest: {directory / view.best.entry['directory']}")
    print(f"\n{directory}/results.csv\ntensorboard --logdir {shlex.quote(str(directory))}", flush=True)


def edits(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """By job the values of config keys in which it differs from a job of the same overrides: a config file was edited
    between two calls of the sweep."""
    configs = {
        key: flat(metadata["config"]) for key, metadata in read_all_metadata(manifest.directory).items() if key in manifest.jobs
    }
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in configs:
        overrides = sorted(item for item in manifest.jobs[key]["overrides"] if item.partition("=")[0].lstrip("+") not in REPEATS)
        alike.setdefault(tuple(overrides), []).append(key)
    found: dict[str, dict[str, Any]] = {}
    for keys in alike.values():
        names = dict.fromkeys(name for key in keys for name in configs[key] if name not in REPEATS)
        changed = [name for name in names if len({json.dumps(configs[key].get(name)) for key in keys}) > 1]
        found |= {key: {name: configs[key].get(name) for name in changed} for key in keys if changed}
    return found


def _ranked(manifest: Manifest) -> list[tuple[str, dict[str, Any]]]:
    """Best metric first; jobs without one at the end."""

    def rank(item: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
        metric = item[1]["metric"]
        sign = -1 if item[1].get("optimized_mode") == "max" else 1
        return metric is None, 0.0 if metric is None else sign * metric

    return sorted(manifest.jobs.items(), key=rank)


def _result(key: str, job: dict[str, Any], manifest: Manifest, swept: Sequence[str]) -> dict[str, Any]:
    record = (read_record(manifest.directory / job["directory"]) or {}) if job["status"] == FINISHED else {}
    values = dict(override.lstrip("+").partition("=")[::2] for override in job["overrides"])
    result = {"key": key, "repetition": job.get("repetition"), "directory": job["directory"], "status": job["status"]}
    result |= {name: values.get(name.lstrip("+")) for name in swept} | {"metric": job["metric"]}
    result |= {name: record.get(name) for name in RECORDED} | record.get("metrics", {})
    return result | {"reason": shorten(job["reason"]) if job["reason"] else None}


def _csv(names: Sequence[str], results: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()


def _repeats(results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Mean and standard deviation of the metric over seeds or folds, where there are several."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["metric"] is not None:
            same = result["repetition"] or json.dumps([result.get(name) for name in names])
            groups.setdefault(same, []).append(result)
    if all(len(same) < 2 for same in groups.values()):
        return []
    rows = []
    for same in groups.values():
        metrics = [result["metric"] for result in same]
        spread = statistics.stdev(metrics) if len(metrics) > 1 else None
        rows.append(same[0] | {"runs": len(metrics), "mean": statistics.mean(metrics), "standard deviation": spread})
    return [_markdown([*names, "runs", "mean", "standard deviation"], rows)]


def _markdown(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in _cells(columns, rows)]
    text = io.StringIO()
    Console(file=text, width=100_000).print(table(cells, columns, box=box.MARKDOWN))
    return text.getvalue().strip() + "\n"


def _cells(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[_cell(row.get(name)) for name in names] for row in rows]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
