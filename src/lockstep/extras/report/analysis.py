"""What several sections of the report compute from a sweep's measurements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.extras.report.measurements import Measurement, Measurements
from lockstep.extras.report.series import Series, find_series

Block = dict[str, Any]  # of a page, see lockstep.extras.report.page
_BYTES = {"16-true": 2, "bf16-true": 2, "64-true": 8}  # of a gradient, by trainer.precision; others have four
_TIMES = {"processes": {str: {"sizes": [int], "seconds": [int | float]}}}


def read_all_reduce(path: Path) -> dict[int, tuple[list[int], list[float]]]:
    """Return bytes and seconds of an all-reduce by number of processes, as scripts/allreduce.py wrote them.

    Raises:
        ConfigError: the file has none.
    """
    times = (read_json(path, _TIMES) or {"processes": {}})["processes"]
    if not all(count.isdecimal() and len(one["sizes"]) == len(one["seconds"]) > 0 for count, one in times.items()) or not times:
        raise config_error("--all-reduce", path, "has no times of an all-reduce; accepted is what scripts/allreduce.py wrote")
    return {int(count): (one["sizes"], one["seconds"]) for count, one in times.items()}


@dataclass(frozen=True)
class Analysis:
    """What a section is given. Sections of other extras use `records` only.

    all_reduce: bytes and seconds by number of processes, as measured apart.
    """

    measured: Measurements
    all_reduce: Mapping[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    @cached_property
    def all_series(self) -> list[Series]:
        return find_series(self.measured)

    @property
    def series(self) -> Series | None:
        """The series of the most jobs, which the answer is about."""
        return self.all_series[0] if self.all_series else None

    @property
    def records(self) -> dict[int, list[dict[str, Any]]]:
        """What the jobs of that series have recorded (metrics.json), by number of devices."""
        return {point.devices: [row.record for row in point.rows] for point in self.series.points} if self.series else {}

    @cached_property
    def on_cpu(self) -> list[Measurement]:
        return [row for row in self.measured.finished if row.record.get("accelerator") == "cpu"]

    @cached_property
    def crowded(self) -> list[Measurement]:
        """Jobs of more threads than the cores that they had: they wait for each other's computing, not for communication."""

        def threads(row: Measurement) -> int:
            return row.record.get("devices", row.devices) * (row.record.get("threads") or 1)

        return [row for row in self.on_cpu if threads(row) > (row.record.get("cores") or row.record.get("cpu_count") or math.inf)]

    @property
    def gradient_bytes(self) -> float:
        """Size of the gradients in bytes; 0 if the number of parameters is not recorded."""
        record = self.measured.finished[0].record if self.measured.finished else {}
        return float(record.get("parameters") or 0) * _BYTES.get(str(record.get("precision")), 4)

    def all_reduce_seconds(self, devices: int) -> float | None:
        """Seconds of an all-reduce of the gradients, interpolated between the measured sizes; None if it was not measured."""
        if devices not in self.all_reduce or not self.gradient_bytes:
            return None
        sizes, seconds = self.all_reduce[devices]
        return float(numpy.interp(self.gradient_bytes, sizes, seconds)) * max(1.0, self.gradient_bytes / sizes[-1])
