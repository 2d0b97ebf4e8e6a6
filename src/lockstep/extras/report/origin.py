"""What the report rests on, and what it lacks."""

from collections import Counter
from collections.abc import Iterator

from lockstep.console import join_first
from lockstep.extras.report.analysis import Analysis, Block
from lockstep.extras.report.choice import count
from lockstep.extras.report.measurements import Measurement, distinct
from lockstep.extras.report.series import MIXED
from lockstep.sweeps.table import shorten


def missing(analysis: Analysis) -> Iterator[Block]:
    """Yields nothing if the sweep is complete and its jobs can be compared."""
    if items := [*_lacking(analysis), *_doubts(analysis)]:
        yield {"heading": "What is missing, and what to be careful about"}
        yield {"list": items}


def _lacking(analysis: Analysis) -> Iterator[str]:
    rows = analysis.measured.rows
    for row in rows:
        if not row.is_finished:
            yield f"{row.job}: {row.status}{f' ({shorten(row.reason)})' if row.reason else ''}"
    grid = {(row.devices, row.lr) for row in rows}
    counts, rates = sorted({n for n, _ in grid}), sorted({lr for _, lr in grid if lr})
    if holes := [f"devices={n} at lr {lr:g}" for n in counts for lr in rates if (n, lr) not in grid]:
        yield f"The grid has no job for {join_first(holes)}."
    for variant, number in analysis.measured.left_out.items():
        which = f"of {' '.join(variant)}" if variant else "without these overrides"
        how = f": --only {' '.join(variant)} is a report of them" if variant else ""
        yield f"{count(number, 'job')} {which} left out{how}."


def _doubts(analysis: Analysis) -> Iterator[str]:
    finished = analysis.measured.finished
    if analysis.series is None:
        return
    if max(Counter((row.devices, row.global_batch, row.lr) for row in finished).values()) == 1:
        yield "Nothing was repeated: seed=0,1,2 in the sweep would say how far the metric is chance."
    if analysis.series.kind == MIXED:
        yield "Neither the batch of a device nor the global batch was kept over the counts: a speed-up is of both together."
    threads = distinct(finished, "threads")
    if len(threads) > 1 and analysis.on_cpu:
        yield f"Processes had {join_first(threads)} threads: a speed-up is not that of one thread. OMP_NUM_THREADS=1 makes it so."
    if analysis.crowded:
        counts = sorted({row.devices for row in analysis.crowded})
        yield f"With {join_first(counts)} devices there were more threads than cores: processes waited for each other."
    for name, words in {"git_commit": "commits", "device_name": "kinds of device", "precision": "precisions"}.items():
        if len(values := distinct(finished, name)) > 1:
            yield f"Jobs of several {words} are compared: {join_first(values)}."
    if any(row.record.get("git_dirty") for row in finished):
        yield "Some jobs ran with changes that were not committed."


def origin(analysis: Analysis) -> Iterator[Block]:
    finished = analysis.measured.finished
    records = [row.record for row in finished]
    yield {"heading": "Where the numbers come from"}
    facts = {
        "sweep": [analysis.measured.directory],
        "chosen": analysis.measured.variant,
        "commit": distinct(finished, "git_commit"),
        "device": distinct(finished, "device_name"),
        "machine": [f"{one.get('host')}, {one.get('cpu_count')} cores, {one.get('platform')}" for one in records],
        "threads a process": distinct(finished, "threads"),
        "precision": distinct(finished, "precision"),
        "parameters": distinct(finished, "parameters"),
        "python": distinct(finished, "python"),
        "versions": [", ".join(f"{name} {v}" for name, v in (one.get("versions") or {}).items()) for one in records],
    }
    yield {"list": [f"{name}: {'; '.join(map(str, dict.fromkeys(values)))}" for name, values in facts.items() if any(values)]}
    columns = ["job", "devices", "lr", "seed", "samples/s", "seconds", analysis.measured.metric]
    yield {"columns": columns, "table": [_job(row) for row in finished]}


def _job(row: Measurement) -> list[str]:
    numbers = [(row.lr, "g"), (row.samples_per_second, ",.0f"), (row.seconds, ".1f"), (row.metric, ".4g")]
    lr, rate, seconds, metric = ("" if number is None else format(number, form) for number, form in numbers)
    return [row.job, str(row.devices), lr, str(row.seed), rate, seconds, metric]
