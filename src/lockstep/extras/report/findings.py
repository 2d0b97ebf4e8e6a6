"""What is computed from a sweep's measurements once, for several sections of the page."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.extras.report import choice, communication, scaling
from lockstep.extras.report.communication import Fit, Timing
from lockstep.extras.report.measurements import Measurement, Measurements
from lockstep.extras.report.scaling import Series

NODE = 8  # devices
NODE_BANDWIDTH = 12.5e9  # bytes per second: 100 Gbit/s
LEAST_SHARE = 0.8  # of a core's time, for a process that has it to itself


@dataclass(frozen=True)
class Assumed:
    """What a person may know better than the measurements.

    target: of the metric, to which time is told. all_reduce: latency in seconds and bandwidth in bytes per second, as measured
    apart. node, node_bandwidth: devices of a node, and bytes per second between nodes, for predictions.
    """

    target: float | None = None
    all_reduce: Mapping[str, float] = field(default_factory=dict)
    node: int = NODE
    node_bandwidth: float = NODE_BANDWIDTH


def read_all_reduce(path: Path) -> dict[str, float]:
    """Latency and bandwidth of what scripts/allreduce.py wrote. Raises ConfigError where it says neither."""
    known = (read_json(path) or {}).get("all")
    found = {name: known.get(name) for name in ("latency", "bandwidth")} if isinstance(known, dict) else {}
    numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float) and value > 0}
    if not numbers:
        raise config_error("--all-reduce", path, "has no latency and no bandwidth; accepted is what scripts/allreduce.py wrote")
    return numbers


@dataclass(frozen=True)
class Findings:
    measured: Measurements
    assumed: Assumed

    @cached_property
    def all_series(self) -> list[Series]:
        return scaling.series_of(self.measured)

    @property
    def series(self) -> Series | None:
        """The one of the most jobs, that the answer is about."""
        return self.all_series[0] if self.all_series else None

    @cached_property
    def answer(self) -> str:
        busy = " Measured on a machine that was busy." if self.starved else ""
        return choice.answer(self.measured, self.series, self.fit) + busy

    @cached_property
    def crowded(self) -> list[Measurement]:
        """Jobs of more threads than the machine has cores: what they wait for is no communication."""
        return [row for row in self.on_cpu if _threads(row) > (row.record.get("cpu_count") or math.inf)]

    @cached_property
    def starved(self) -> list[Measurement]:
        """Jobs of one process that had less than most of a core's time, though there was nobody to wait for."""
        alone = [row for row in self.on_cpu if row.devices == 1 and row.record.get("train_time")]
        return [row for row in alone if (row.record.get("train_cpu_time") or 0.0) < LEAST_SHARE * row.record["train_time"]]

    @cached_property
    def bytes(self) -> float:
        """Of the gradients; 0 where it is not recorded."""
        record = self.measured.finished[0].record if self.measured.finished else {}
        precision = str(record.get("precision"))
        each = {"16-true": 2, "bf16-true": 2, "64-true": 8}.get(precision, 4)
        return float(record.get("parameters") or 0) * each

    @cached_property
    def fit(self) -> Fit | None:
        if self.series is None:
            return None
        rows = [row for point in self.series.points for row in point.rows if row not in self.crowded]
        timings = [Timing(r.devices, r.batch_per_device, r.step_seconds) for r in rows if r.batch_per_device and r.step_seconds]
        return communication.fit(timings, self.given)

    @property
    def given(self) -> dict[str, float]:
        """Parameters of the model that were measured apart."""
        known = self.assumed.all_reduce
        found = {"latency": known["latency"]} if "latency" in known else {}
        return found | ({"transfer": self.bytes / known["bandwidth"]} if known.get("bandwidth") and self.bytes else {})

    @cached_property
    def on_cpu(self) -> list[Measurement]:
        return [row for row in self.measured.finished if row.record.get("accelerator") == "cpu"]

    def recorded(self, value: Callable[[dict[str, Any]], Any]) -> dict[int, list[Any]]:
        """By number of devices what the records of the answer's jobs have of a value, where any has it."""
        points = self.series.points if self.series else ()
        found = {point.devices: [known for row in point.rows if (known := value(row.record))] for point in points}
        return {devices: values for devices, values in found.items() if values}


def _threads(row: Measurement) -> int:
    return row.record.get("devices", row.devices) * (row.record.get("threads") or 1)
