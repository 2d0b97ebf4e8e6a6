"""What a sample is worth where the global batch is larger, and by how much training is faster for it.

Goodput is throughput times statistical efficiency (Qiao et al. 2021, Pollux, arXiv:2008.12260): a sample of a larger batch is
worth less, because fewer steps are made with as many samples.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from lockstep.extras.report.measurements import Measurement
from lockstep.extras.report.series import Point, Series, common_target

LEAST_EPOCHS = 3  # of every job, whose losses are compared at equal samples


@dataclass(frozen=True)
class Goodput:
    """efficiency: by number of devices, what a sample is worth of one in the batch of the fewest devices; nothing where that is
    not known, and throughput has to do. source: how it is known. noise_scale: in samples, where it follows from that."""

    efficiency: Mapping[int, float]
    source: str
    noise_scale: float | None = None

    @classmethod
    def of(cls, series: Series, maximize: bool, target: float | None = None) -> Self:
        batches = {point.devices: point.global_batch for point in series.points}
        if len({*batches.values()}) == 1:
            return cls(dict.fromkeys(batches, 1.0), "a sample is worth the same at one global batch")
        target = common_target(series, maximize) if target is None else target
        needed = {} if target is None else {point.devices: _samples(point, target, maximize) for point in series.points}
        known = {devices: samples for devices, samples in needed.items() if samples is not None}
        if known and len(known) == len(batches):
            least = known[series.base.devices]
            source = f"what a sample is worth follows from how many each count needed until {target:.4g}"
            return cls({devices: min(1.0, least / samples) for devices, samples in known.items()}, source)
        if (scale := _noise_scale(series)) is not None:
            source = f"what a sample is worth follows from the gradient noise scale of {scale:,.0f} samples"
            base = series.base.global_batch
            return cls({devices: worth(base, batch, scale) for devices, batch in batches.items()}, source, scale)
        return cls({}, f"no noise scale, and no losses of {LEAST_EPOCHS} epochs, say what a sample of a larger batch is worth")

    @property
    def is_throughput(self) -> bool:
        return all(share > 0.995 for share in self.efficiency.values())

    def speedup(self, point: Point) -> float:
        return point.speedup.mean * self.efficiency.get(point.devices, 1.0)


def worth(batch: float, larger: float, noise_scale: float) -> float:
    """Returns what a sample of the larger batch is worth of one of the other: a batch of B samples needs (1 + B / noise_scale)
    times the fewest possible samples (McCandlish et al. 2018, arXiv:1812.06162, equation 2.11)."""
    return (noise_scale + batch) / (noise_scale + larger)


def _noise_scale(series: Series) -> float | None:
    records = [row.record for point in series.points for row in point.rows]
    scales = [scale for one in records if (scale := one.get("noise_scale_mean") or one.get("noise_scale"))]
    return statistics.fmean(scales) if scales else None


def _samples(point: Point, target: float, maximize: bool) -> float | None:
    """Returns the samples until the target at the best rate, the mean of its repeats; None if one of them has not reached it, or
    has too few epochs."""
    needed = [_first_samples(row, target, maximize) for row in point.at_best_rate]
    known = [samples for samples in needed if samples is not None]
    return statistics.fmean(known) if len(known) == len(needed) else None


def _first_samples(row: Measurement, target: float, maximize: bool) -> float | None:
    """Between two epochs it is interpolated."""
    size = row.record.get("samples_per_epoch")
    if len(row.history) < LEAST_EPOCHS or not size:
        return None
    sign = 1 if maximize else -1
    values: Sequence[float] = [sign * value for _, value, _ in row.history]
    epochs = [epoch for _, _, epoch in row.history]
    at = next((i for i, value in enumerate(values) if value >= sign * target), None)
    if not at:
        return None if at is None else epochs[0] * size
    before = max(values[:at])
    return size * (epochs[at - 1] + (epochs[at] - epochs[at - 1]) * (sign * target - before) / (values[at] - before))
