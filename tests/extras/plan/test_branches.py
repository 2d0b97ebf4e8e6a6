"""Which branches are tried, and the critical batch that follows from their losses."""

import math
from collections.abc import Sequence

import numpy
import pytest
from planted_answers import DOUBLE, Quadratic

from lockstep.extras.plan.branches import Branch, Branches, best_rate, critical_batch, direct_critical, efficiencies, explore


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

    def noise(branches: Sequence[Branch]) -> list[list[float]]:
        return [[2.0, *(2 + 0.02 * generator.normal(size=5))] for _ in branches]

    known = explore(noise, [0], 0.1, 8, linear)
    assert efficiencies(known, 0) == {}
    assert math.isnan(critical_batch(known, 0))


def test_a_spent_budget_ends_the_search_with_what_is_known() -> None:
    planted = Quadratic(noise=512, smallest=32, samples=4096, seed=0)
    left = 5

    def measure(branches: Sequence[Branch]) -> list[list[float] | None]:
        nonlocal left
        left -= len(branches)
        return list(planted.measure(branches)) if left >= 0 else [None] * len(branches)

    known = explore(measure, [0], planted.best_rate, 64, linear)
    assert len(known.curves) <= 5
    assert 1 in known.multiples(0)


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


def test_the_same_planted_losses_give_the_same_branches() -> None:
    first, second = (Quadratic(noise=512, smallest=32, samples=1024, seed=3) for _ in range(2))
    assert explore(first.measure, [0, 1], 0.05, 8, linear) == explore(second.measure, [0, 1], 0.05, 8, linear)
