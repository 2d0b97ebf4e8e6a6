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
from lockstep.sweeps.job_directory import RECORDED, read_all_metadata
from lockstep.sweeps.jobs import REPEATS, flat, varying
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.table import print_table, shorten
from lockstep.sweeps.view import JobView, SweepView


def write_results(manifest: Manifest, keys: Sequence[str]) -> SweepView:
    """Shows the jobs `keys` sorted by their metric, failures last; writes results.csv and results.md of all jobs. Returns what it
    has shown."""
    directory, ranked = manifest.directory, SweepView(manifest, is_held=False).ranked
    swept = varying([job["overrides"] for job in manifest.jobs.values()])
    edited = edits(manifest)
    results = [_result(job, swept) | edited.get(job.key, {}) for job in ranked]
    names = [name for name in dict.fromkeys(itertools.chain(*results)) if name != "repetition"]
    replace_text(directory / "results.csv", _csv(names, results))
    differing = dict.fromkeys(itertools.chain(swept, *edited.values()))
    tables = [_markdown(names[1:], results), *_repeats(results, [name for name in differing if name not in REPEATS])]
    replace_text(directory / "results.md", "\n".join(tables))
    view = SweepView(manifest, is_held=False, keys=[job.key for job in ranked if job.key in keys])
    print_table(view)
    if view.best is not None:
        print(f"\nbest: {directory / view.best.entry['directory']}")
    print(f"\n{directory}/results.csv\ntensorboard --logdir {shlex.quote(str(directory))}", flush=True)
    return view


def edits(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Returns by job the values of config keys in which it differs from a job of the same overrides: a config file was edited
    between two calls of the sweep."""
    metadata = {key: content for key, content in read_all_metadata(manifest.directory).items() if key in manifest.jobs}
    configs = {key: flat(content["config"]) for key, content in metadata.items()}
    groups: dict[tuple[str, ...], list[str]] = {}
    for key in configs:
        overrides = sorted(item for item in manifest.jobs[key]["overrides"] if item.partition("=")[0].lstrip("+") not in REPEATS)
        groups.setdefault(tuple(overrides), []).append(key)
    edited: dict[str, dict[str, Any]] = {}
    for keys in groups.values():
        names = dict.fromkeys(name for key in keys for name in configs[key] if name not in REPEATS)
        changed = [name for name in names if len({json.dumps(configs[key].get(name)) for key in keys}) > 1]
        edited |= {key: {name: configs[key].get(name) for name in changed} for key in keys if changed}
    return edited


def _result(job: JobView, swept: Sequence[str]) -> dict[str, Any]:
    values = dict(override.lstrip("+").partition("=")[::2] for override in job.entry["overrides"])
    result = {
        "key": job.key,
        "repetition": job.entry.get("repetition"),
        "directory": job.entry["directory"],
        "status": job.status,
    }
    result |= {name: values.get(name.lstrip("+")) for name in swept} | {"metric": job.entry["metric"]}
    result |= {name: job.record.get(name) for name in RECORDED} | job.record.get("metrics", {})
    return result | {"reason": job.entry["reason"] and shorten(job.entry["reason"])}


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
            repetition = result["repetition"] or json.dumps([result.get(name) for name in names])
            groups.setdefault(repetition, []).append(result)
    if all(len(group) < 2 for group in groups.values()):
        return []
    rows = []
    for group in groups.values():
        metrics = [result["metric"] for result in group]
        spread = statistics.stdev(metrics) if len(metrics) > 1 else None
        rows.append(group[0] | {"runs": len(metrics), "mean": statistics.mean(metrics), "standard deviation": spread})
    return [_markdown([*names, "runs", "mean", "standard deviation"], rows)]


def _markdown(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    text = io.StringIO()
    Console(file=text, width=100_000).print(table(cells, names, box=box.MARKDOWN))
    return text.getvalue().strip() + "\n"


def _cell(value: Any) -> str:
    """One line without the column's border."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
