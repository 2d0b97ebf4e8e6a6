"""Which branches are tried, and the critical batch that follows from their losses."""

import math
from collections.abc import Sequence

import numpy
import pytest
from planted_answers import DOUBLE, Quadratic

from lockstep.extras.plan.branches import (
    Branch,
    Branches,
    best_rate,
    critical_batch,
    direct_critical,
    efficiencies,
    explore,
    extend_longest,
)


def linear(multiple: int) -> float:
    return float(multiple)


def test_the_planted_critical_batch_is_within_a_factor_of_1_3_in_nine_of_ten_seeds() -> None:
    hits = 0
    for seed in range(10):
        planted = Quadratic(noise=512, smallest=32, samples=8192, seed=seed)
        off = (0.7, 1.0, 1.4)[seed % 3]  # nobody's rate is the best one
        known = explore(planted.measure, [0], off * planted.best_rate, 64, linear)
        hits += 1 / 1.3 < critical_batch(known, 0) * planted.smallest / (DOUBLE * planted.noise) < 1.3
        assert len(known.curves) <= 27
    assert hits >= 9


def test_a_batch_far_below_the_noise_scale_keeps_what_its_samples_are_worth() -> None:
    planted = Quadratic(noise=16384, smallest=32, samples=4096, seed=0)
    known = explore(planted.measure, [0], planted.best_rate, 8, linear)
    assert all(value > 0.95 for value in efficiencies(known, 0).values())
    assert direct_critical(known, 0) == 8
    assert critical_batch(known, 0) > 64


def test_a_batch_far_above_it_is_given_up_soon() -> None:
    planted = Quadratic(noise=8, smallest=32, samples=4096, seed=0)
    known = explore(planted.measure, [0], planted.best_rate, 64, linear)
    assert known.multiples(0) == [1, 2, 4]
    assert critical_batch(known, 0) < 1.5


def test_losses_that_do_not_fall_say_nothing() -> None:
    generator = numpy.random.default_rng(0)

    def noise(branches: Sequence[Branch], halves: int) -> list[list[float]]:
        return [[2.0, *(2 + 0.02 * generator.normal(size=3 * halves))] for _ in branches]

    known = explore(noise, [0], 0.1, 8, linear)
    assert efficiencies(known, 0) == {}
    assert math.isnan(critical_batch(known, 0))


def test_a_spent_budget_ends_the_search_with_what_is_known() -> None:
    planted = Quadratic(noise=512, smallest=32, samples=4096, seed=0)
    left = 10  # halves

    def measure(branches: Sequence[Branch], halves: int) -> list[list[float] | None]:
        nonlocal left
        left -= len(branches)
        return list(planted.measure(branches, halves)) if left >= 0 else [None] * len(branches)

    known = explore(measure, [0], planted.best_rate, 64, linear)
    assert planted.spent <= 5
    assert 1 in known.multiples(0)


def test_rates_that_are_clearly_worse_are_given_up_after_half_a_branch() -> None:
    planted = Quadratic(noise=512, smallest=32, samples=8192, seed=0, points=8)
    known = explore(planted.measure, [0], 2.5 * planted.best_rate, 64, linear)
    lengths = {len(curve) for curve in known.curves.values()}
    assert lengths == {5, 9}
    assert planted.spent <= len(known.curves) - 1
    for multiple in known.multiples(0):
        own = {one: len(known.curves[one]) for one in known.curves if one.multiple == multiple}
        assert own[max(own, key=lambda one: known.worths(0).by_branch[one])] == 9
    assert 1 / 1.3 < critical_batch(known, 0) * planted.smallest / (DOUBLE * planted.noise) < 1.3


def test_the_best_branches_go_on_where_they_say_least() -> None:
    planted = Quadratic(noise=512, smallest=32, samples=2048, seed=0, points=8)
    known = explore(planted.measure, [0, 1], planted.best_rate, 8, linear)
    before = {start: known.worths(start).error for start in (0, 1)}
    least = max(before, key=lambda start: before[start])
    assert extend_longest(known, planted.measure)
    assert known.worths(least).error < 0.9 * before[least]
    assert known.worths(1 - least).error < 1.3 * before[1 - least]
    assert {len(curve) for one, curve in known.curves.items() if one.start != least} <= {5, 9}
    longest = [one for one, curve in known.curves.items() if len(curve) == 13]
    assert sorted(one.multiple for one in longest) == known.multiples(least)
    assert not extend_longest(known, lambda branches, _: [None] * len(branches))


def test_branches_that_diverge_are_left_out() -> None:
    falls = [2.0, 1.8, 1.6, 1.4, 1.3]
    known = Branches({Branch(0, 1, 0.1): falls, Branch(0, 1, 0.2): [2.0, math.inf, math.inf, math.inf, math.inf]})
    assert list(known.worths(0).at(1)) == [0.1]
    known.curves[Branch(0, 2, 0.2)] = [2.0, math.inf, math.inf, math.inf, math.inf]
    assert known.multiples(0) == [1]


def test_the_best_rate_lies_between_those_measured_and_never_beyond() -> None:
    parabola = {rate: 1 - (math.log(rate) - math.log(0.03)) ** 2 for rate in (0.01, 0.02, 0.04, 0.08)}
    rate, worth = best_rate(parabola)
    assert rate == pytest.approx(0.03)
    assert worth == max(parabola.values())
    assert best_rate({0.1: 0.5, 0.2: 0.6, 0.4: 0.7}) == (0.4, 0.7)
    assert math.isnan(best_rate({})[0])


def test_what_the_same_samples_do_to_all_branches_is_no_spread() -> None:
    smooth, bumps = [2.0 * 0.9**k for k in range(7)], [1, 1.02, 0.99, 1.03, 0.98, 1.01, 1.0]
    curve = [loss * bump for loss, bump in zip(smooth, bumps, strict=True)]
    known = Branches({Branch(0, 1, rate): curve for rate in (0.1, 0.2, 0.4)})
    known.curves[Branch(0, 2, 0.2)] = [2.0 * 0.95**k * bump for k, bump in enumerate(bumps)]  # half as many samples' worth
    assert known.spread < 1e-9
    assert efficiencies(known, 0)[2] == pytest.approx(math.log(0.95) / math.log(0.9), abs=0.05)


def test_a_rate_at_which_the_loss_rises_is_no_noise() -> None:
    """As seen on digits: batch 128 at four times the best rate hid that all others agreed."""
    generator = numpy.random.default_rng(0)
    known = Branches(
        {
            Branch(0, 1, rate): [1.0, *(numpy.geomspace(0.9, 0.6, 5) * (1 + 0.01 * generator.normal(size=5)))]
            for rate in (0.1, 0.2)
        }
    )
    before = known.spread
    known.curves[Branch(0, 16, 1.6)] = [1.0, 1.4, 5.4, 3.4, 3.4, 2.0]
    assert known.spread == before < 0.02
    assert known.worths(0).is_sure


def test_the_same_planted_losses_give_the_same_branches() -> None:
    first, second = (Quadratic(noise=512, smallest=32, samples=1024, seed=3) for _ in range(2))
    assert explore(first.measure, [0, 1], 0.05, 8, linear) == explore(second.measure, [0, 1], 0.05, 8, linear)
