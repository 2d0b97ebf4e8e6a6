"""A model of a step's time over n devices, and its fit to what was measured.

T(n) = compute + max(0, 2(n-1)/n * bytes/bandwidth + 2(n-1) * latency - overlap)

The ring all-reduce sends 2(n-1) messages of bytes/n each (Thakur et al. 2005, "Optimization of Collective Communication
Operations in MPICH"; Patarasuk and Yuan 2009). DDP hides `overlap` seconds of it behind the backward pass (Li et al. 2020,
arXiv 2006.15704).
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy
from numpy.typing import NDArray
from scipy.optimize import least_squares

from lockstep.extras.report.estimates import Estimate

UNREPEATED_NOISE = 0.02  # relative, of timings of which none was repeated
LEAST_NOISE = 0.002
_AS_GOOD = 4.0  # in Akaike's criterion: models within it of the best are as good (Burnham and Anderson 2002)
LEAST_LOSS = 0.05  # of a step: less communication is no limit
_NEGLIGIBLE = 1e-6  # of a step: a smaller parameter is dropped


@dataclass(frozen=True)
class Timing:
    """One run: seconds of an optimizer step on `devices`, with `batch` samples on each, at a learning rate."""

    devices: int
    batch: float
    seconds: float
    lr: float | None = None


@dataclass(frozen=True)
class StepModel:
    """All parameters are in seconds: compute = fixed + per_sample * batch, transfer = bytes/bandwidth, latency is of one
    message."""

    fixed: float = 0.0
    per_sample: float = 0.0
    transfer: float = 0.0
    latency: float = 0.0
    overlap: float = 0.0

    def terms(self, devices: int, batch: float) -> dict[str, float]:
        """Returns the seconds of a step by their cause, with `batch` samples on each device. The overlap shortens bandwidth's and
        latency's in proportion."""
        rings = ring(devices, self.transfer, self.latency)
        exposed = max(0.0, sum(rings) - self.overlap) / sum(rings) if sum(rings) else 0.0
        compute = {"fixed cost": self.fixed, "compute": batch * self.per_sample}
        return compute | {"bandwidth": rings[0] * exposed, "latency": rings[1] * exposed}

    def seconds(self, devices: int, batch: float) -> float:
        return sum(self.terms(devices, batch).values())


def ring(devices: int, transfer: float, latency: float) -> tuple[float, float]:
    """Returns the seconds of an all-reduce that are due to bandwidth, and those due to latency."""
    return 2 * (devices - 1) / devices * transfer, 2 * (devices - 1) * latency


@dataclass(frozen=True)
class Workload:
    """How the batch goes with the number of devices: `batch` samples per device, or `global_batch` over all."""

    batch: float = 0.0
    global_batch: float = 0.0

    def per_device(self, devices: int) -> float:
        return self.global_batch / devices if self.global_batch else self.batch

    def terms(self, step: StepModel, devices: int) -> dict[str, float]:
        return step.terms(devices, self.per_device(devices))

    def throughput(self, step: StepModel, devices: int) -> float:
        """Returns samples per second over all devices."""
        return self.per_device(devices) * devices / sum(self.terms(step, devices).values())

    def efficiency(self, step: StepModel, devices: int) -> float:
        """Returns the throughput of a device as a share of what one alone has."""
        return self.throughput(step, devices) / (devices * self.throughput(step, 1))

    def limit(self, step: StepModel, devices: int) -> str:
        """Names the largest term that ideal scaling does not have, or compute if all of them together are small."""
        terms = self.terms(step, devices)
        ideal = {"compute"} if self.global_batch else {"compute", "fixed cost"}
        losses = {name: seconds for name, seconds in terms.items() if name not in ideal}
        is_limited = sum(losses.values()) > LEAST_LOSS * sum(terms.values())
        return max(losses, key=lambda name: losses[name]) if is_limited else "compute"


@dataclass(frozen=True)
class Candidate:
    """A fitted model whose `free` parameters are not zero, with their covariance, and Akaike's criterion as its misfit."""

    model: StepModel
    free: tuple[str, ...]
    covariance: NDArray[numpy.float64]
    misfit: float

    def error(self, quantity: Callable[[StepModel], float]) -> float:
        """Propagates the standard errors of the parameters to a quantity, to first order."""
        gradient = numpy.zeros(len(self.free))
        for i, name in enumerate(self.free):
            value = getattr(self.model, name)
            above, below = (quantity(replace(self.model, **{name: value * (1 + side)})) for side in (1e-4, -1e-4))
            gradient[i] = (above - below) / (2e-4 * value)
        return float(numpy.sqrt(gradient @ self.covariance @ gradient))


@dataclass(frozen=True)
class Fit:
    """The best model comes first, then those as good by the measurements. `noise` is relative, of one timing."""

    candidates: tuple[Candidate, ...]
    counts: tuple[int, ...]
    noise: float
    is_repeated: bool = False

    @property
    def reach(self) -> float:
        """The most devices for which there are predictions: twice the largest count, where there are neither repeats, which show
        how sure the times are, nor a third count, which separates latency from bandwidth."""
        return math.inf if self.is_repeated or len(self.counts) > 2 else 2 * max(self.counts)

    @property
    def model(self) -> StepModel:
        return self.candidates[0].model

    def predict(self, quantity: Callable[[StepModel], float]) -> Estimate:
        """Evaluates a quantity that is not negative; the interval covers the 95% intervals of all candidates."""
        values = [(quantity(one.model), 1.96 * one.error(quantity)) for one in self.candidates]
        bounds = max(0.0, min(value - half for value, half in values)), max(value + half for value, half in values)
        return Estimate(values[0][0], bounds)

    def is_sure_of(self, parameter: str) -> bool:
        """Returns whether all candidates have this parameter, or none has it."""
        return len({parameter in one.free for one in self.candidates}) == 1


def fit(timings: Sequence[Timing], given: Mapping[str, float] | None = None) -> Fit | None:
    """Fits by least squares in relative error; parameters are not negative, and those `given` are not fitted. Returns None for
    fewer than two numbers of devices, which say nothing of communication.

    Akaike's criterion chooses the parameters that are not zero: a smaller model where a larger one explains no more. At one
    global batch (strong scaling) `fixed` and `transfer` can't be distinguished: 2(n-1)/n is 2 less 2/n, and compute has a part
    that goes with 1/n.
    """
    counts = tuple(sorted({timing.devices for timing in timings}))
    if len(counts) < 2:
        return None
    groups: dict[tuple[int, float], list[float]] = {}
    for timing in timings:
        groups.setdefault((timing.devices, timing.batch), []).append(timing.seconds)
    noise = _noise([seconds for seconds in groups.values() if len(seconds) > 1])
    choices = [free for free in _choices(timings, given or {}) if len(free) <= len(groups)]
    candidates = [one for free in choices if (one := _candidate(free, timings, noise, given or {})) is not None]
    candidates.sort(key=lambda one: one.misfit)
    best = tuple(one for one in candidates if one.misfit <= candidates[0].misfit + _AS_GOOD)
    repeats = len(timings) - len({(one.devices, one.batch, one.lr) for one in timings})
    return Fit(best, counts, noise, repeats > 0) if best else None


def _choices(timings: Sequence[Timing], given: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    is_one_batch = len({timing.batch for timing in timings}) == 1
    computes = [("per_sample",)] if is_one_batch else [("per_sample",), ("fixed", "per_sample")]
    terms = [name for name in ("transfer", "latency", "overlap") if name not in given]
    for compute, count in itertools.product(computes, range(len(terms) + 1)):
        for chosen in itertools.combinations(terms, count):
            if chosen != ("overlap",) or given:
                yield *compute, *chosen


def _noise(repeated: Sequence[Sequence[float]]) -> float:
    """Pools the relative standard deviation of repeats."""
    if not repeated:
        return UNREPEATED_NOISE
    squares = sum((len(same) - 1) * statistics.variance(same) / statistics.fmean(same) ** 2 for same in repeated)
    return max(LEAST_NOISE, math.sqrt(squares / sum(len(same) - 1 for same in repeated)))


def _candidate(free: tuple[str, ...], timings: Sequence[Timing], noise: float, given: Mapping[str, float]) -> Candidate | None:
    """Returns None if the measurements leave one of the parameters undetermined, or make it negligible."""
    first = min(timings, key=lambda timing: timing.devices)
    units = dict.fromkeys(asdict(StepModel()), first.seconds) | {"per_sample": first.seconds / first.batch}
    scale = numpy.array([units[name] for name in free])

    def model(values: NDArray[numpy.float64]) -> StepModel:
        return StepModel(**given, **dict(zip(free, (values * scale).tolist(), strict=True)))

    def residuals(values: NDArray[numpy.float64]) -> list[float]:
        step = model(values)
        return [(step.seconds(one.devices, one.batch) / one.seconds - 1) / noise for one in timings]

    starts = [[0.8 if name == "per_sample" else start for name in free] for start in (0.01, 0.1, 1.0)]
    best = min((least_squares(residuals, start, bounds=(0, numpy.inf)) for start in starts), key=lambda one: one.cost)
    curvature = best.jac.T @ best.jac
    if min(best.x) < _NEGLIGIBLE or numpy.linalg.matrix_rank(curvature) < len(free):
        return None
    surplus = max(1.0, 2 * best.cost / max(1, len(timings) - len(free)))  # of misfit over what noise explains
    covariance = numpy.linalg.inv(curvature) * numpy.outer(scale, scale) * surplus
    return Candidate(model(best.x), free, covariance, 2 * float(best.cost) + 2 * len(free))
