"""What batches need, and their best rates, by all branches at once."""

import math

import numpy
import pytest
from planted_answers import Quadratic

from lockstep.extras.plan.branches import Branch, Branches, explore
from lockstep.extras.plan.critical import worth
from lockstep.extras.plan.surface import fitted_surface

POINTS, SMALLEST = 20, {1: 1.0, 2: 1.1, 4: 1.4}  # what the batches need at their best rates
RATES = [0.25, 0.5, 1.0, 2.0]


def curve(needs: float, points: int = POINTS) -> list[float]:
    """Falls below the loss of 0.1 after so many times 16 points."""
    return [0.1 ** (point / (16 * needs)) for point in range(points + 1)]


def scattered(seed: int, scatter: float, repeats: int = 1, drift: float = 0.0) -> Branches:
    """The best rate is 0.7 times the rule's, and twice the batch has one that is `drift` octaves above it; a half of the best
    rate takes a quarter more; each branch scatters, and each seed with all of its branches."""
    generator, known = numpy.random.default_rng(seed), Branches()
    for repeat in range(repeats):
        of_a_seed = scatter * generator.normal()
        for multiple, needs in SMALLEST.items():
            for rate in RATES:
                octaves = math.log2(rate / 0.7) - drift * math.log2(multiple)
                log = math.log(needs) + 0.25 * octaves**2 + of_a_seed + scatter * generator.normal()
                known.curves[Branch(0, multiple, multiple * rate, repeat)] = curve(math.exp(log), POINTS if multiple == 1 else 30)
    return known


def test_without_scatter_the_needs_are_those_of_the_batches_and_the_best_rates_the_nearest() -> None:
    surface = fitted_surface(scattered(0, 0.0), 0)
    assert {m: surface.best_rates(m)[0] / m for m in SMALLEST} == {1: 0.5, 2: 0.5, 4: 0.5}
    assert {m: draws[0] for m, draws in surface.worths.items()} == pytest.approx(
        {m: 1 / needs for m, needs in SMALLEST.items()}, rel=0.02
    )


def test_a_best_rate_that_grows_more_slowly_than_by_the_rule_is_found() -> None:
    surface = fitted_surface(scattered(0, 0.0, drift=-0.75), 0)
    assert [surface.best_rates(m)[0] / m for m in SMALLEST] == [0.5, 0.5, 0.25]


def test_what_samples_are_worth_is_surer_than_by_the_best_branch_of_each_batch() -> None:
    """Of which each has been lucky."""
    fitted, single = [], []
    for seed in range(12):
        known = scattered(seed, 0.08, repeats=2)
        fitted.append([math.log(draws[0] * SMALLEST[m]) for m, draws in fitted_surface(known, 0).worths.items() if m > 1])
        own = {m: [c for one, c in known.curves.items() if (one.multiple, one.repeat) == (m, 0)] for m in SMALLEST}
        best = {m: min(-1 / (16 * math.log10(c[1])) for c in curves) for m, curves in own.items()}
        single.append([math.log(best[1] / best[m] * SMALLEST[m]) for m in SMALLEST if m > 1])
    errors = [float(numpy.sqrt(numpy.mean(numpy.square(rows)))) for rows in (fitted, single)]
    assert errors[0] < 0.8 * errors[1]


def test_the_interval_of_the_draws_holds_the_truth_and_is_no_wider_than_it_must_be() -> None:
    held, widths = 0, []
    for seed in range(20):
        draws = fitted_surface(scattered(seed, 0.08), 0).worths[4]
        low, high = numpy.quantile(draws, [0.025, 0.975])
        held += low < 1 / SMALLEST[4] < high
        widths.append(high / low)
    assert held >= 17
    assert numpy.median(widths) < 1.7


def test_rates_far_above_the_least_are_left_out_and_those_that_diverge() -> None:
    known = scattered(0, 0.0)
    known.curves[Branch(0, 2, 16.0)] = curve(4.0, 30)
    known.curves[Branch(0, 2, 8.0)] = [1.0, *[math.inf] * 30]
    assert {rate for multiple, rate in fitted_surface(known, 0).needs if multiple == 2} == {2 * rate for rate in RATES}


def test_flat_losses_have_no_surface() -> None:
    known = Branches(1.0, {Branch(0, 1, 0.1): [2.0] * 10, Branch(0, 2, 0.2): [2.0] * 12})
    surface = fitted_surface(known, 0)
    assert (surface.needs, surface.worths, surface.best_rates(1)) == ({}, {}, [])


def test_a_rate_ten_times_too_large_for_a_long_training_is_left_however_good_it_is_in_a_short_one() -> None:
    """All large rates end in the same valley, in which they differ by nothing."""

    def measure(branches: list[Branch], points: int) -> list[list[float]]:
        return [[fallen(one.rate, point) for point in range(points + 1)] for one in branches]

    def fallen(rate: float, point: int) -> float:
        floor = 0.5 if rate > 0.015 else 0.0
        return floor + (1 - floor) * math.exp(-point * min(rate, 0.016)) * (1 + 0.01 * math.log2(rate / 0.04) ** 2)

    known = Branches()
    explore(known, measure, worth, 0.04, 1, 6, lambda: 60)  # pyright: ignore[reportArgumentType]
    assert known.best_rate(0, 1) < 0.015


def test_it_is_the_same_for_a_planted_quadratic_whatever_the_seed_of_the_draws() -> None:
    planted, known = Quadratic(noise=128, smallest=32, every=1024, seed=0), Branches(1024)
    explore(known, planted.measure, worth, planted.best_rate, 4, 8, lambda: 16)
    one, other = (fitted_surface(known, 0, seed).worths for seed in (0, 1))
    assert {m: draws[0] for m, draws in one.items()} == {m: draws[0] for m, draws in other.items()}
