"""All that is computed from a sweep's measurements, once, for the page and the pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.reports import choice, communication, rates, scaling
from lockstep.reports.communication import Fit, Timing
from lockstep.reports.measurements import Measurement, Measurements
from lockstep.reports.prediction import Network, Setting
from lockstep.reports.rates import Rule
from lockstep.reports.scaling import STRONG, Arrival, Point, Series

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
    def chosen(self) -> Point | None:
        """What the answer says to take."""
        return choice.chosen(self.series, self.measured.maximize) if self.series else None

    @cached_property
    def crowded(self) -> list[Measurement]:
        """Jobs of more threads than the machine has cores: what they wait for is no communication."""
        return [row for row in self.measured.finished if _is_crowded(row)]

    @cached_property
    def starved(self) -> list[Measurement]:
        """Jobs of one process that had less than most of a core's time, though there was nobody to wait for."""
        return [row for row in self.measured.finished if _is_starved(row)]

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
    def settings(self) -> tuple[Setting, Setting | None]:
        """On one network as measured, and on nodes of several devices; None where the gradients' size is not known."""
        assert self.series is not None
        one = choice.setting_of(self.series)
        if self.fit is None or not self.bytes:
            return one, None
        transfer = max(self.bytes / self.assumed.node_bandwidth, self.fit.model.transfer)  # between nodes it is not quicker
        nodes = Network(self.assumed.node, transfer, self.fit.model.latency)
        return one, Setting(one.batch, one.global_batch, network=nodes)

    @cached_property
    def rule(self) -> Rule | None:
        return rates.fitted_rule(self.series, self.measured.maximize) if self.series else None

    @cached_property
    def target(self) -> float | None:
        if self.assumed.target is not None or self.series is None:
            return self.assumed.target
        return scaling.common_target(self.series, self.measured.maximize)

    @cached_property
    def arrivals(self) -> dict[int, Arrival]:
        if self.series is None or self.target is None:
            return {}
        return scaling.arrivals(self.series, self.target, self.measured.maximize)

    @property
    def grid(self) -> dict[tuple[int, float], rates.Cell]:
        """Jobs by number of devices and rate, of the answer's series; of all jobs where there is none."""
        rows = rates.rows_of(self.series, self.measured) if self.series else self.measured.rows
        return rates.cells(rows)

    @property
    def same_batch(self) -> Series | None:
        """The longest series in which only the number of devices differs."""
        return next((series for series in self.all_series if series.kind == STRONG), None)

    @property
    def is_on_cpu(self) -> bool:
        return any(row.record.get("accelerator") == "cpu" for row in self.measured.finished)

    @cached_property
    def noise_scale(self) -> dict[int, float]:
        """By number of devices, in samples; of the whole training where that was recorded."""
        return _means(self.series, lambda record: record.get("noise_scale_mean") or record.get("noise_scale"))

    @cached_property
    def time_shares(self) -> dict[int, dict[str, float]]:
        """By number of devices the mean share of each part of a step."""
        found = {}
        for point in self.series.points if self.series else ():
            parts = [row.record["step_time"] for row in point.rows if row.record.get("step_time")]
            names = dict.fromkeys(name for part in parts for name in part)
            if parts:
                found[point.devices] = {name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}
        return found

    @cached_property
    def memory(self) -> dict[int, tuple[float, float]]:
        """By number of devices the smallest and the largest of the ranks' peaks, in GiB, of the job that took most: on CPUs those
        of the processes, else those of the devices."""
        found = {}
        for point in self.series.points if self.series else ():
            jobs = [row.record["memory_gib_of_ranks"] for row in point.rows if row.record.get("memory_gib_of_ranks")]
            if jobs:
                most = max(jobs, key=max)
                found[point.devices] = (min(most), max(most))
        return found


def _means(series: Series | None, value: Any) -> dict[int, float]:
    found = {}
    for point in series.points if series else ():
        values = [number for row in point.rows if (number := value(row.record))]
        if values:
            found[point.devices] = sum(values) / len(values)
    return found


def _is_crowded(row: Measurement) -> bool:
    record = row.record
    if record.get("accelerator") != "cpu" or not record.get("cpu_count"):
        return False
    return record.get("devices", row.devices) * (record.get("threads") or 1) > record["cpu_count"]


def _is_starved(row: Measurement) -> bool:
    record = row.record
    if record.get("accelerator") != "cpu" or row.devices > 1 or not record.get("train_time"):
        return False
    return (record.get("train_cpu_time") or 0.0) < LEAST_SHARE * record["train_time"]
