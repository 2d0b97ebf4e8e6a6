"""What several sections of the report compute from a sweep's measurements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.extras.report import step_model
from lockstep.extras.report.goodput import Goodput
from lockstep.extras.report.measurements import Measurement, Measurements
from lockstep.extras.report.series import Series, find_series

_BYTES = {"16-true": 2, "bf16-true": 2, "64-true": 8}  # of a gradient, by trainer.precision; others have four


def read_all_reduce(path: Path) -> dict[str, float]:
    """Reads latency and bandwidth from what scripts/allreduce.py wrote. Raises ConfigError if it holds neither."""
    measured = (read_json(path) or {}).get("all")
    values = {name: measured.get(name) for name in ("latency", "bandwidth")} if isinstance(measured, dict) else {}
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float) and value > 0}
    if not numbers:
        raise config_error("--all-reduce", path, "has no latency and no bandwidth; accepted is what scripts/allreduce.py wrote")
    return numbers


@dataclass(frozen=True)
class Analysis:
    """What a section is given. Sections of other extras use `records` only.

    target: the metric to which time is measured. all_reduce: latency in seconds and bandwidth in bytes per second, as measured
    apart.
    """

    measured: Measurements
    target: float | None = None
    all_reduce: Mapping[str, float] = field(default_factory=dict)

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

    @cached_property
    def gradient_bytes(self) -> float:
        """0 if the number of parameters is not recorded."""
        record = self.measured.finished[0].record if self.measured.finished else {}
        return float(record.get("parameters") or 0) * _BYTES.get(str(record.get("precision")), 4)

    @cached_property
    def goodput(self) -> Goodput | None:
        """Of that series."""
        return Goodput.of(self.series, self.measured.maximize, self.target) if self.series else None

    @cached_property
    def timings(self) -> list[step_model.Timing]:
        rows = [row for point in self.series.points for row in point.rows if row not in self.crowded] if self.series else []
        complete = [(row.devices, row.batch_per_device, row.step_seconds, row.lr) for row in rows]
        return [step_model.Timing(n, batch, time, lr) for n, batch, time, lr in complete if batch and time]

    @cached_property
    def fit(self) -> step_model.Fit | None:
        return step_model.fit(self.timings, self.given)

    def fit_below(self, devices: int) -> step_model.Fit | None:
        """Returns what would have been fitted to the smaller numbers of devices alone."""
        return step_model.fit([one for one in self.timings if one.devices < devices], self.given)

    @property
    def given(self) -> dict[str, float]:
        """Parameters of the step model that were measured apart."""
        size, bandwidth = self.gradient_bytes, self.all_reduce.get("bandwidth")
        transfer = {"transfer": size / bandwidth} if bandwidth and size else {}
        return {name: value for name, value in self.all_reduce.items() if name == "latency"} | transfer
