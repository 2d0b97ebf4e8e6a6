"""How many devices, which batch and which rate: throughput times statistical efficiency, which is goodput (Qiao et al. 2021,
arXiv:2008.12260)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from lockstep.extras.plan.branches import Branches, best_rate, critical_batch, direct_critical, efficiencies
from lockstep.extras.report.choice import WORTH
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.step_model import Fit, StepModel, Workload

_DRAWS = 200  # of the bootstrap
_WIDEST = 2.0  # a speed-up whose interval's ends differ by a larger factor is not chosen
STATISTICS = "statistics"


@dataclass(frozen=True)
class Candidate:
    """speedup: of the time to the same loss, over the fewest devices with the smallest batch; cost: the device-hours over those;
    limit: what keeps the speed-up from being the number of devices; is_measured: whether its count of devices was timed."""

    devices: int
    multiple: int
    speedup: Estimate
    cost: Estimate
    limit: str
    is_measured: bool

    @property
    def is_sure(self) -> bool:
        low, high = self.speedup.bounds
        return high <= _WIDEST * low


@dataclass(frozen=True)
class Plan:
    """candidates: all of them; front: those that no other beats in both speed and cost; chosen: None where nothing can be said,
    for the reason `why_not`."""

    candidates: tuple[Candidate, ...] = ()
    chosen: Candidate | None = None
    rate: float | None = None
    why_not: str | None = None

    @property
    def front(self) -> list[Candidate]:
        return [one for one in self.candidates if not any(_beats(other, one) for other in self.candidates)]

    @property
    def next_larger(self) -> Candidate | None:
        """The best one of the next larger count of devices."""
        more = [one for one in self.candidates if self.chosen and one.devices > self.chosen.devices]
        return _fastest([one for one in more if one.devices == min(other.devices for other in more)]) if more else None


def _beats(other: Candidate, one: Candidate) -> bool:
    better = other.speedup.mean >= one.speedup.mean and other.cost.mean <= one.cost.mean
    return better and (other.speedup.mean, other.cost.mean) != (one.speedup.mean, one.cost.mean)


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda one: one.speedup.mean)


def make_plan(known: Branches, fit: Fit | None, counts: Sequence[int], batch: int, seed: int = 0) -> Plan:
    """`batch` is the smallest one; `counts` are the devices to choose from, the fewest first."""
    if fit is None:
        return Plan(why_not="the throughput was not measured on two counts of devices")
    criticals = _criticals(known, seed)
    if criticals is None:
        return Plan(
            why_not="over a branch the loss falls by hardly more than it scatters; a larger plan.budget makes branches longer"
        )
    multiples = sorted({multiple for start in known.starts for multiple in known.multiples(start)})
    pairs = [(n, multiple) for n in counts for multiple in multiples if (multiple * batch) % n == 0]
    candidates = tuple(_candidate(fit, counts[0], n, batch, multiple, criticals, seed) for n, multiple in pairs)
    sure = [one for one in candidates if one.is_sure]
    if all((one.devices, one.multiple) == (counts[0], 1) for one in sure):
        return Plan(candidates, why_not="the speed-ups are too uncertain; a larger plan.budget makes them surer")
    chosen = _choose(sure, counts)
    return Plan(candidates, chosen, rate_at(known, chosen.multiple))


def rate_at(known: Branches, multiple: int) -> float:
    """The geometric mean of the best rates at the checkpoints."""
    rates = [best_rate(known.worths(start).at(multiple))[0] for start in known.starts if multiple in known.multiples(start)]
    return math.exp(sum(map(math.log, rates)) / len(rates))


def _criticals(known: Branches, seed: int) -> numpy.ndarray | None:
    """Critical batches in multiples of the smallest: the last checkpoint's, then draws over all checkpoints and the noise."""
    usable = [start for start in known.starts if math.isfinite(critical_batch(known, start))]
    if not usable:
        return None
    generator, spread = numpy.random.default_rng(seed), known.spread
    chosen = [int(start) for start in generator.choice(usable, _DRAWS)]
    draws = [critical_batch(known.perturbed(generator, spread, start), start) for start in chosen]
    return numpy.array([critical_batch(known, usable[-1]), *(draw for draw in draws if math.isfinite(draw))])


def _candidate(fit: Fit, fewest: int, devices: int, batch: int, multiple: int, criticals: numpy.ndarray, seed: int) -> Candidate:
    work, base = Workload(global_batch=batch * multiple), Workload(global_batch=batch)

    def faster(step: StepModel) -> float:
        return work.throughput(step, devices) / base.throughput(step, fewest)

    throughput = fit.predict(faster)
    kept = (1 + 1 / criticals) / (1 + multiple / criticals)
    speedups = (
        throughput.mean * kept[1:] * numpy.exp(_sigma(throughput) * numpy.random.default_rng(seed).normal(size=len(kept) - 1))
    )
    mean = float(throughput.mean * kept[0])
    low, high = (float(end) for end in numpy.quantile(speedups, [0.025, 0.975]))
    ratio = devices / fewest
    is_statistical = -math.log(kept[0]) > max(0.0, math.log(ratio / throughput.mean))
    return Candidate(
        devices=devices,
        multiple=multiple,
        speedup=Estimate(mean, (min(low, mean), max(high, mean))),
        cost=Estimate(ratio / mean, (ratio / max(high, mean), ratio / min(low, mean))),
        limit=STATISTICS if is_statistical else work.limit(fit.model, devices),
        is_measured=devices in fit.counts,
    )


def _sigma(estimate: Estimate) -> float:
    low, high = estimate.bounds
    return math.log(high / low) / (2 * 1.96) if low > 0 else 1.0


def _choose(candidates: Sequence[Candidate], counts: Sequence[int]) -> Candidate:
    """The most devices, if each step up to them is worth its devices: as the scaling report decides, but by goodput."""
    by_count = [
        _fastest([one for one in candidates if one.devices == n]) for n in counts if any(one.devices == n for one in candidates)
    ]
    best = by_count[0]
    for one in by_count[1:]:
        if math.log(one.speedup.mean / best.speedup.mean) / math.log(one.devices / best.devices) < WORTH:
            break
        best = one
    return best


def critical_batches(known: Branches, batch: int) -> list[dict[str, Any]]:
    """By checkpoint: the batch that needs twice the samples, the largest one that keeps up, efficiencies and best rates."""
    rows = []
    for start in known.starts:
        multiples = known.multiples(start)
        rates = {multiple * batch: best_rate(known.worths(start).at(multiple))[0] for multiple in multiples}
        critical = critical_batch(known, start)
        rows.append(
            {
                "samples": start,
                "critical_batch": critical * batch if math.isfinite(critical) else None,
                "largest_that_keeps_up": direct_critical(known, start) * batch,
                "efficiency": {multiple * batch: value for multiple, value in efficiencies(known, start).items()},
                "best_rate": rates,
                "power_of_the_rate": _power(rates),
            }
        )
    return rows


def _power(rates: dict[int, float]) -> float | None:
    """With which power of the batch the best rate grows, over the batches that were measured."""
    if len(rates) < 2:
        return None
    return float(numpy.polyfit(numpy.log([*rates]), numpy.log([*rates.values()]), 1)[0])


def sentence(plan: Plan, batch: int, cost: float) -> str:
    """The answer. `cost`: of all that was run, in trainings."""
    spent = f"It cost {cost:.0%} of one training."
    chosen = plan.chosen
    if chosen is None or plan.rate is None:
        return f"Nothing can be said: {plan.why_not}. {spent}"
    fewest = _devices(min(one.devices for one in plan.candidates))
    what = (
        f"Take {_devices(chosen.devices)}, global batch {chosen.multiple * batch}, lr {plan.rate:.2g}: {_fast(chosen)} as fast "
        f"to the same loss as {fewest} with batch {batch}, at {chosen.cost.mean:.2f}x the device-hours."
    )
    if (more := plan.next_larger) is not None:
        what += f" {_devices(more.devices)} would be {_fast(more)} at {more.cost.mean:.2f}x the cost."
    return f"{what} {spent}"


def _fast(one: Candidate) -> str:
    low, high = one.speedup.bounds
    return f"{one.speedup.mean:.2g}x ({low:.2g}x to {high:.2g}x{'' if one.is_measured else ', by the fitted model'})"


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"
