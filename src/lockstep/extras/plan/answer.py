"""How many devices, which batch and which rate: throughput times statistical efficiency, which is goodput (Qiao et al. 2021,
arXiv:2008.12260)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from lockstep.extras.plan.branches import Branches
from lockstep.extras.plan.critical import Critical, criticals
from lockstep.extras.plan.surface import fitted_surface
from lockstep.extras.report.choice import WORTH
from lockstep.extras.report.estimates import Estimate
from lockstep.extras.report.step_model import Fit, StepModel, Workload

_WIDEST = 2.0  # a speed-up whose interval's ends differ by a larger factor is not chosen
AS_GOOD = 0.05  # of the time to a target: choices that differ by less are as good as one another
DOUBT = 0.05  # of the draws, which may choose otherwise
STATISTICS, THROUGHPUT = "statistics", "throughput"


@dataclass(frozen=True)
class Candidate:
    """speedup: of the time to the same loss, over the fewest devices with the smallest batch; cost: the device-hours over those;
    seconds: for what a sample is worth in the smallest batch; limit: what keeps the speed-up from being the number of devices;
    errors: standard ones of the speed-up's logarithm, by their cause; is_measured: whether its count of devices was timed;
    draws: what the speed-up might have been, by other draws of the noise."""

    devices: int
    multiple: int
    speedup: Estimate
    cost: Estimate
    seconds: Estimate
    limit: str
    errors: Mapping[str, float]
    is_measured: bool
    draws: NDArray[numpy.float64] = field(default_factory=lambda: numpy.empty(0), compare=False, repr=False)

    @property
    def is_sure(self) -> bool:
        low, high = self.speedup.bounds
        return high <= _WIDEST * low

    @property
    def least_certain(self) -> str:
        """The cause of the larger error."""
        return max(self.errors, key=lambda cause: self.errors[cause])


@dataclass(frozen=True)
class Plan:
    """candidates: all of them; front: those that no other beats in both speed and cost; chosen: None where nothing can be said,
    for the reason `why_not`. target: the loss to which it is so fast; critical: what is known of the critical batch there;
    rivals: what would be chosen by other draws of the noise and is not as good by them, with the share of the draws."""

    candidates: tuple[Candidate, ...] = ()
    chosen: Candidate | None = None
    rate: float | None = None
    why_not: str | None = None
    target: float | None = None
    critical: Critical | None = field(default=None, compare=False)
    rivals: tuple[tuple[float, Candidate], ...] = field(default=(), compare=False)

    @property
    def front(self) -> list[Candidate]:
        return [one for one in self.candidates if not any(_beats(other, one) for other in self.candidates)]

    @property
    def errors(self) -> list[tuple[float, str]]:
        """The standard errors of the choice's speed-up, or where there is no choice the largest of all, by their cause; the
        largest first."""
        about = [self.chosen] if self.chosen else [*self.candidates]
        causes = {cause for one in about for cause in one.errors}
        return sorted(((max(one.errors[cause] for one in about), cause) for cause in causes), reverse=True)

    @property
    def deciding(self) -> list[int]:
        """The batches, in multiples of the smallest, that decide between the choice and its first rival: both, or where devices
        differ, that of the fewer devices and the best one of the next count. Without a rival, the choice's and the next best one.
        Where there is no choice, that of the least certain candidate."""
        if self.chosen is None:
            most = max(self.candidates, key=lambda one: one.errors[STATISTICS], default=None)
            return [most.multiple] if most is not None and most.least_certain == STATISTICS else []
        others = [one for one in self.candidates if one.devices == self.chosen.devices and one.multiple != self.chosen.multiple]
        rivals = [*(one for _, one in self.rivals), *sorted(others, key=_mean, reverse=True)]
        pairs = [self._decided_by(self.chosen, one) for one in rivals]
        return sorted(next((pair for pair in pairs if len(pair) == 2), {self.chosen.multiple}))

    @property
    def is_doubtful(self) -> bool:
        """Would other draws choose another batch, in more than a few cases?"""
        if self.chosen is None:
            return bool(self.deciding)
        return sum(share for share, one in self.rivals if len(self._decided_by(self.chosen, one)) == 2) > DOUBT

    def _decided_by(self, *two: Candidate) -> set[int]:
        fewer, other = sorted(two, key=lambda one: one.devices)
        between = [one for one in self.candidates if fewer.devices < one.devices <= other.devices]
        if between:
            other = _fastest([one for one in between if one.devices == min(one.devices for one in between)])
        return {fewer.multiple, other.multiple}

    @property
    def next_larger(self) -> Candidate | None:
        """The best one of the next larger count of devices."""
        more = [one for one in self.candidates if self.chosen and one.devices > self.chosen.devices]
        return _fastest([one for one in more if one.devices == min(other.devices for other in more)]) if more else None


def _beats(other: Candidate, one: Candidate) -> bool:
    better = other.speedup.mean >= one.speedup.mean and other.cost.mean <= one.cost.mean
    return better and (other.speedup.mean, other.cost.mean) != (one.speedup.mean, one.cost.mean)


Speed = Callable[[Candidate], float]


def _mean(one: Candidate) -> float:
    return one.speedup.mean


def _fastest(candidates: Sequence[Candidate], speed: Speed = _mean) -> Candidate:
    return max(candidates, key=speed)


def make_plan(
    known: Branches, fit: Fit | None, counts: Sequence[int], batch: int, seed: int = 0, target: float | None = None
) -> Plan:
    """`batch` is the smallest one; `counts` are the devices to choose from, the fewest first. `target` is a loss that the
    training is known to reach; where there is none, it is what branches have reached."""
    if fit is None:
        return Plan(why_not="the throughput was not measured on two counts of devices")
    found = criticals(known, seed)
    if not found:
        return Plan(
            why_not="over a branch the loss falls by hardly more than it scatters; a larger plan.budget makes branches longer"
        )
    last, tried = max(found), known.multiples(known.starts[0])
    pairs = [(n, multiple) for n in counts for multiple in found[last].kept if (multiple * batch) % n == 0 and multiple in tried]
    candidates = tuple(
        _candidate(fit, counts[0], n, batch, multiple, found[last].worths[multiple], seed) for n, multiple in pairs
    )
    sure = [one for one in candidates if one.is_sure]
    if all((one.devices, one.multiple) == (counts[0], 1) for one in sure):
        least = max(candidates, key=lambda one: sum(one.errors.values())).least_certain
        words = f"the speed-ups are too uncertain, by their {least} most; a larger plan.budget makes them surer"
        return Plan(candidates, why_not=words, critical=found[last])
    chosen = _choose(sure, counts)
    goal = known.goal(last) if target is None else target
    first = known.starts[0]
    rates = fitted_surface(known, first).best_rates(chosen.multiple) or [known.best_rate(first, chosen.multiple)]
    return Plan(candidates, chosen, rates[0], target=goal, critical=found[last], rivals=_rivals(chosen, sure, counts))


def _rivals(chosen: Candidate, candidates: Sequence[Candidate], counts: Sequence[int]) -> tuple[tuple[float, Candidate], ...]:
    """The most frequent first."""
    picks: list[Candidate] = []
    for draw in range(len(chosen.draws)):
        pick = _choose(candidates, counts, lambda one, draw=draw: one.draws[draw])
        if abs(math.log(pick.draws[draw] / chosen.draws[draw])) > math.log(1 + AS_GOOD):
            picks.append(pick)
    shares = [(sum(one is other for other in picks) / len(chosen.draws), one) for one in candidates]
    return tuple(sorted((pair for pair in shares if pair[0]), key=lambda pair: -pair[0]))


def _candidate(
    fit: Fit, fewest: int, devices: int, batch: int, multiple: int, kept: NDArray[numpy.float64], seed: int
) -> Candidate:
    work, base = Workload(global_batch=batch * multiple), Workload(global_batch=batch)

    def faster(step: StepModel) -> float:
        return work.throughput(step, devices) / base.throughput(step, fewest)

    throughput = fit.predict(faster)
    errors = {THROUGHPUT: _sigma(throughput), STATISTICS: float(numpy.std(numpy.log(kept)))}
    draws = _draws(throughput, kept, seed)
    ratio, speedup = devices / fewest, _estimate(throughput.mean * kept[0], draws)
    is_statistical = -math.log(kept[0]) > max(0.0, math.log(ratio / throughput.mean))
    seconds = fit.predict(lambda step: 1 / work.throughput(step, devices))
    low, high = speedup.bounds
    return Candidate(
        devices=devices,
        multiple=multiple,
        speedup=speedup,
        cost=Estimate(ratio / speedup.mean, (ratio / high, ratio / low)),
        seconds=_estimate(seconds.mean / kept[0], _draws(seconds, 1 / kept, seed)),
        limit=STATISTICS if is_statistical else work.limit(fit.model, devices),
        errors=errors,
        is_measured=devices in fit.counts,
        draws=draws,
    )


def _draws(estimate: Estimate, factors: NDArray[numpy.float64], seed: int) -> NDArray[numpy.float64]:
    """The estimate with its own error, times each factor but the first, which is the best one."""
    noise = numpy.exp(_sigma(estimate) * numpy.random.default_rng(seed).normal(size=len(factors) - 1))
    return estimate.mean * factors[1:] * noise


def _estimate(mean: float, draws: NDArray[numpy.float64]) -> Estimate:
    low, high = (float(end) for end in numpy.quantile(draws, [0.025, 0.975]))
    return Estimate(float(mean), (min(low, mean), max(high, mean)))


def _sigma(estimate: Estimate) -> float:
    low, high = estimate.bounds
    return math.log(high / low) / (2 * 1.96) if low > 0 else 1.0


def _choose(candidates: Sequence[Candidate], counts: Sequence[int], speed: Speed = _mean) -> Candidate:
    """The most devices, if each step up to them is worth its devices: as the scaling report decides, but by goodput."""
    by_count = [[one for one in candidates if one.devices == n] for n in counts]
    best, *more = [_fastest(same, speed) for same in by_count if same]
    for one in more:
        if math.log(speed(one) / speed(best)) / math.log(one.devices / best.devices) < WORTH:
            break
        best = one
    return best


def sentence(plan: Plan, batch: int, cost: float, monitor: str = "val/loss") -> str:
    """The answer. `cost`: of all that was run, in trainings."""
    spent = f"It cost {cost:.0%} of one training."
    critical = "" if plan.critical is None else f" The critical batch is {plan.critical.words(batch)}."
    chosen = plan.chosen
    if chosen is None or plan.rate is None:
        return f"Nothing can be said: {plan.why_not}.{critical} {spent}"
    fewest = _devices(min(one.devices for one in plan.candidates))
    goal = "the same loss" if plan.target is None else f"{monitor} {plan.target:.3g}"
    what = (
        f"Take {_devices(chosen.devices)}, global batch {chosen.multiple * batch}, lr {plan.rate:.2g}: {_fast(chosen)} as fast "
        f"to {goal} as {fewest} with batch {batch}, at {_times(chosen.cost)} the device-hours, limited by {chosen.limit}."
    )
    if (more := plan.next_larger) is not None:
        what += f" {_devices(more.devices)} would be {_fast(more)} at {_times(more.cost)} the cost, limited by {more.limit}."
    return f"{what}{_doubt(plan, batch)}{_impossible(plan, batch)}{critical} {spent}"


def _doubt(plan: Plan, batch: int) -> str:
    if sum(share for share, _ in plan.rivals) <= DOUBT:
        return ""
    share, rival = plan.rivals[0]
    other = f"{_devices(rival.devices)}, global batch {rival.multiple * batch}"
    return f" By {share:.0%} of other draws of the noise it would be {other}."


def _impossible(plan: Plan, batch: int) -> str:
    """A larger batch takes fewer steps for the same samples, with less noise in each: at the best rates it needs no fewer."""
    worths = {} if plan.critical is None else plan.critical.worths
    for multiple, draws in worths.items():
        if numpy.quantile(draws, 0.025) > 1 + AS_GOOD:
            needed = f"batch {multiple * batch} needed {1 / draws[0]:.2f} times the samples of batch {batch}"
            return f" But {needed}, and no larger batch does at the best rates: that of batch {batch} was not found."
    return ""


def _fast(one: Candidate) -> str:
    return _times(one.speedup, "" if one.is_measured else ", by the fitted model")


def _times(value: Estimate, how: str = "") -> str:
    low, high = value.bounds
    return f"{value.mean:.2f}x ({low:.2f}x to {high:.2f}x{how})"


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"
