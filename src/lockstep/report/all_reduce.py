"""The all-reduce of the gradients, measured apart by lockstep allreduce, beside what a step takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.report.series import Series

Times = dict[int, tuple[list[int], list[float]]]  # bytes and seconds by number of processes
_AGREES = 1.1  # a step that takes so many times what explains it is doubted
_BYTES = {"16-true": 2, "bf16-true": 2, "64-true": 8}  # of a gradient, by trainer.precision; others have four


def read_all_reduce(path: Path) -> Times:
    """Read what lockstep allreduce --json wrote. Raises ConfigError if it has no times."""
    processes = (read_json(path) or {}).get("processes")
    if not processes:
        raise config_error("--all-reduce", path, "has no times of an all-reduce; use what lockstep allreduce --json wrote")
    return {int(count): (one["sizes"], one["seconds"]) for count, one in processes.items()}


def all_reduce(series: Series, times: Times) -> Iterator[dict[str, Any]]:
    """Yield the table, and at which counts a step takes longer than the all-reduce explains."""
    rows, unexplained = [], []
    for point in series.points:
        if point.devices in times:
            alone, step = _seconds(point.rows[0].record, *times[point.devices]), point.global_batch / point.throughput.mean
            ideal = step * point.efficiency.mean
            rows.append([str(point.devices), *(f"{1000 * seconds:.3g}" for seconds in (alone, ideal, step))])
            unexplained += [str(point.devices)] if step > _AGREES * (ideal + alone) else []
    if rows:
        yield {"heading": "The all-reduce of the gradients, measured apart"}
        yield {"columns": ["devices", "ms alone", "ms of a step, ideal", "ms of a step, measured"], "table": rows}
    if unexplained:
        words = "a step takes longer than an ideal one and the all-reduce together: it waits for something else, data say."
        yield {"text": f"These numbers do not agree. With devices={', '.join(unexplained)} {words}"}


def _seconds(record: dict[str, Any], sizes: list[int], seconds: list[float]) -> float:
    """Interpolate between the measured sizes; a larger message takes as much longer as it is larger."""
    size = (record.get("parameters") or 0) * _BYTES.get(str(record.get("precision")), 4)
    return float(numpy.interp(size, sizes, seconds)) * max(1.0, size / sizes[-1])
