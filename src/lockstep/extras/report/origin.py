"""What the report rests on, and what it lacks."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.console import first_of
from lockstep.extras.report.choice import count
from lockstep.extras.report.document import Block, Heading, Items, Table
from lockstep.extras.report.findings import Findings
from lockstep.extras.report.measurements import Measurement
from lockstep.extras.report.scaling import MIXED
from lockstep.sweeps.table import shorten


def missing(found: Findings) -> Iterator[Block]:
    """Nothing where the sweep is whole and its jobs can be compared."""
    if items := [*_jobs(found), *_doubts(found)]:
        yield Heading("What is missing, and what to be careful about")
        yield Items(items)


def _jobs(found: Findings) -> Iterator[str]:
    rows = found.measured.rows
    for row in rows:
        if not row.is_finished:
            yield f"{row.job}: {row.status}{f' ({shorten(row.reason)})' if row.reason else ''}"
    grid = {(row.devices, row.lr) for row in rows}
    holes = [(n, lr) for n in sorted({n for n, _ in grid}) for lr in sorted({lr for _, lr in grid if lr}) if (n, lr) not in grid]
    if holes:
        yield f"The grid has no job for {first_of([f'devices={n} at lr {lr:g}' for n, lr in holes])}."
    for variant, number in found.measured.left_out.items():
        yield f"{count(number, 'job')} of {' '.join(variant)} left out: --only {' '.join(variant)} is a report of them."


def _doubts(found: Findings) -> Iterator[str]:
    finished = found.measured.finished
    if found.series is None:
        return
    places = Counter((row.devices, row.global_batch, row.lr) for row in finished)
    if max(places.values()) == 1:
        yield "Nothing was repeated: seed=0,1,2 in the sweep would say how far the metric is chance."
    if found.series.kind == MIXED:
        yield "Neither the batch of a device nor the global batch was kept over the counts: a speed-up is of both together."
    threads = _distinct(finished, "threads")
    if len(threads) > 1 and found.on_cpu:
        yield f"Processes had {first_of(threads)} threads: a speed-up is not that of one thread. OMP_NUM_THREADS=1 makes it so."
    if found.crowded:
        counts = sorted({row.devices for row in found.crowded})
        yield f"With {first_of(counts)} devices there were more threads than cores: they are left out of the model's fit."
    if found.starved:
        shares = [row.record["train_cpu_time"] / row.record["train_time"] for row in found.starved]
        yield (
            f"Jobs of one process had {min(shares):.0%} to {max(shares):.0%} of a core: the machine was busy with other things, "
            "and no time here is to be relied on."
        )
    for name, words in {"git_commit": "commits", "device_name": "kinds of device", "precision": "precisions"}.items():
        if len(values := _distinct(finished, name)) > 1:
            yield f"Jobs of several {words} are compared: {first_of(values)}."
    if any(row.record.get("git_dirty") for row in finished):
        yield "Some jobs ran with changes that were not committed."


def origin(found: Findings) -> Iterator[Block]:
    finished = found.measured.finished
    yield Heading("Where the numbers come from")
    facts = {
        "sweep": [str(found.measured.directory)],
        "chosen": [*found.measured.variant],
        "commit": _distinct(finished, "git_commit"),
        "device": _distinct(finished, "device_name"),
        "machine": [
            f"{row.record.get('host')}, {row.record.get('cpu_count')} cores, {row.record.get('platform')}" for row in finished
        ],
        "threads a process": _distinct(finished, "threads"),
        "precision": _distinct(finished, "precision"),
        "parameters": _distinct(finished, "parameters"),
        "python": _distinct(finished, "python"),
        "versions": [", ".join(f"{name} {v}" for name, v in (row.record.get("versions") or {}).items()) for row in finished],
    }
    yield Items([f"{name}: {'; '.join(map(str, dict.fromkeys(values)))}" for name, values in facts.items() if any(values)])
    yield Table(("job", "devices", "lr", "seed", "samples/s", "seconds", found.measured.metric), [_job(row) for row in finished])


def _job(row: Measurement) -> list[str]:
    numbers = [(row.lr, "g"), (row.samples_per_second, ",.0f"), (row.seconds, ".1f"), (row.metric, ".4g")]
    lr, rate, seconds, metric = ("" if number is None else format(number, form) for number, form in numbers)
    return [row.job, str(row.devices), lr, str(row.seed), rate, seconds, metric]


def _distinct(rows: Iterable[Measurement], name: str) -> list[Any]:
    return [value for value in dict.fromkeys(row.record.get(name) for row in rows) if value is not None]
