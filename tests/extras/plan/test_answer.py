"""Goodput, the choice, and the words for it."""

from dataclasses import replace

import numpy
import pytest
from planted_answers import Quadratic

from lockstep.extras.plan.answer import STATISTICS, THROUGHPUT, make_plan, sentence
from lockstep.extras.plan.branches import Branches, explore
from lockstep.extras.plan.critical import critical_batches, criticals, worth
from lockstep.extras.report.step_model import Fit, StepModel, Timing, fit

BATCH = 32
COUNTS = (1, 2, 4, 8)


def branches(noise: float, largest: int = 32) -> Branches:
    planted, known = Quadratic(noise=noise, smallest=BATCH, every=1024, seed=0), Branches(1024)
    explore(known, planted.measure, worth, planted.best_rate, largest, 6, lambda: 12)
    return known


def timed(step: StepModel, noise: float = 0.001) -> Fit:
    """Of one, two and four devices, each batch twice."""
    cases = [(n, per_device) for n in (1, 2, 4) for per_device in (16, 32, 128)]
    timings = [Timing(n, size, step.seconds(n, size) * (1 + sign * noise)) for n, size in cases for sign in (1, -1)]
    fitted = fit(timings)
    assert fitted is not None
    return fitted


FAST_LINK = StepModel(fixed=1e-3, per_sample=1e-3, transfer=1e-4)
SLOW_LINK = StepModel(fixed=1e-3, per_sample=1e-3, transfer=0.2)


def test_goodput_is_throughput_times_what_the_samples_are_worth() -> None:
    plan = make_plan(branches(noise=1e5), timed(FAST_LINK), COUNTS, BATCH)
    best = max(plan.candidates, key=lambda one: one.speedup.mean)
    assert plan.chosen is not None
    assert (plan.chosen.devices, best.devices) == (8, 8)
    assert plan.chosen.speedup.mean == pytest.approx(8, rel=0.1)
    assert plan.chosen.cost.mean == pytest.approx(8 / plan.chosen.speedup.mean)
    assert plan.chosen.is_measured is False
    assert [one.is_measured for one in plan.candidates if one.multiple == 1] == [True, True, True, False]


def test_more_devices_do_not_pay_beyond_the_critical_batch_however_fast_the_link_is() -> None:
    """With a fixed cost of a step, small batches are slow, and large ones are worth little."""
    step = StepModel(fixed=0.05, per_sample=1e-3, transfer=1e-4)
    plan = make_plan(branches(noise=64), timed(step), COUNTS, BATCH)
    assert plan.chosen is not None
    assert plan.chosen.devices < 8
    large = max(plan.candidates, key=lambda one: (one.devices, one.multiple))
    assert large.limit == STATISTICS


@pytest.mark.parametrize(
    ("latency", "chosen", "rival", "deciding"),
    [
        (3e-5, (8, 4), (4, 2), [2, 4]),
        (2e-4, (4, 4), (2, 2), [2, 4]),
        (1e-3, (2, 2), (1, 1), [1, 2]),
        (3e-3, (1, 2), (1, 1), [1, 2]),
    ],
)
def test_what_other_draws_would_choose_is_named_with_its_share(
    latency: float, chosen: tuple[int, int], rival: tuple[int, int], deciding: list[int]
) -> None:
    """Devices and multiples of the batch. More devices are taken or not by the batches on the next count of them."""
    plan = make_plan(branches(noise=64), timed(StepModel(fixed=2e-3, per_sample=2e-4, latency=latency)), COUNTS, BATCH)
    assert plan.chosen is not None
    assert (plan.chosen.devices, plan.chosen.multiple) == chosen
    assert plan.is_doubtful
    assert plan.deciding == deciding
    (share, other), *_ = plan.rivals
    assert (other.devices, other.multiple) == rival
    words = f"{share:.0%} of other draws of the noise it would be {rival[0]} device{'s' if rival[0] > 1 else ''}"
    assert f"By {words}, global batch {rival[1] * BATCH}." in sentence(plan, BATCH, 0.1)


def test_where_other_draws_choose_the_same_nothing_is_doubtful() -> None:
    plan = make_plan(branches(noise=8), timed(FAST_LINK), COUNTS, BATCH)
    assert plan.chosen is not None
    assert (plan.is_doubtful, plan.deciding) == (False, [1, 2])
    assert "other draws" not in sentence(plan, BATCH, 0.1)


def test_a_larger_batch_that_needs_fewer_samples_is_said_to_be_impossible() -> None:
    plan = make_plan(branches(noise=512), timed(FAST_LINK), COUNTS, BATCH)
    assert plan.critical is not None
    assert "But batch" not in sentence(plan, BATCH, 0.1)
    worths = {1: numpy.ones(101), 2: numpy.linspace(1.7, 2.1, 101), 4: numpy.full(101, 0.9)}
    worths[2][0] = 1.9
    odd = replace(plan, critical=replace(plan.critical, worths=worths))
    assert "But batch 64 needed 0.53 times the samples of batch 32, and no larger batch does" in sentence(odd, BATCH, 0.1)


def test_a_slow_link_leaves_one_device() -> None:
    plan = make_plan(branches(noise=64), timed(SLOW_LINK), COUNTS, BATCH)
    assert plan.chosen is not None
    assert plan.chosen.devices == 1
    slow = next(one for one in plan.candidates if (one.devices, one.multiple) == (8, 1))
    assert slow.limit == "bandwidth"
    assert slow.speedup.mean < 1


def test_the_front_has_no_candidate_that_another_beats() -> None:
    plan = make_plan(branches(noise=512), timed(FAST_LINK), COUNTS, BATCH)
    front = sorted(plan.front, key=lambda one: one.speedup.mean)
    costs = [one.cost.mean for one in front]
    assert costs == sorted(costs)
    assert plan.chosen in plan.front


def test_the_interval_contains_the_answer_and_widens_with_the_noise() -> None:
    sharp, blurred = (make_plan(branches(noise=512), timed(FAST_LINK, noise), COUNTS, BATCH) for noise in (0.001, 0.1))
    widths = []
    for plan in (sharp, blurred):
        last = plan.candidates[-1].speedup
        assert last.bounds[0] <= last.mean <= last.bounds[1]
        widths.append(last.bounds[1] / last.bounds[0])
    assert widths[0] < widths[1]


def test_the_sentence_has_the_choice_its_interval_its_price_and_the_next_count() -> None:
    plan = make_plan(branches(noise=512), timed(StepModel(fixed=1e-3, per_sample=1e-3, transfer=0.03)), COUNTS, BATCH)
    said = sentence(plan, BATCH, 0.114)
    assert plan.chosen is not None
    assert plan.target is not None
    assert plan.critical is not None
    assert said.startswith(f"Take {plan.chosen.devices} device")
    assert f"global batch {plan.chosen.multiple * BATCH}, lr " in said
    assert f" as fast to val/loss {plan.target:.3g} as 1 device with batch 32, at " in said
    low, high = plan.chosen.cost.bounds
    assert f"{plan.chosen.cost.mean:.2f}x ({low:.2f}x to {high:.2f}x) the device-hours, limited by {plan.chosen.limit}." in said
    assert f"The critical batch is {plan.critical.words(BATCH)}." in said
    assert said.endswith("It cost 11% of one training.")


def test_what_two_counts_do_not_say_of_more_is_not_chosen() -> None:
    """Latency and bandwidth can't be told apart on two counts: eight devices may be anything."""
    few = fit([Timing(n, size, FAST_LINK.seconds(n, size)) for n in (1, 2) for size in (16, 32, 128)])
    plan = make_plan(branches(noise=1e5), few, COUNTS, BATCH)
    unsure = [one for one in plan.candidates if not one.is_sure]
    assert plan.chosen is not None
    assert plan.chosen.is_sure
    assert 8 in {one.devices for one in unsure}


@pytest.mark.parametrize(
    ("flat", "fitted", "words"), [(True, True, "hardly more than it scatters"), (False, False, "two counts")]
)
def test_it_says_when_nothing_can_be_said(flat: bool, fitted: bool, words: str) -> None:
    known = branches(noise=512, largest=2)
    generator = numpy.random.default_rng(0)
    if flat:
        known = Branches(1.0, {one: [2.0, *(2 + 0.02 * generator.normal(size=6))] for one in known.curves})
    plan = make_plan(known, timed(FAST_LINK) if fitted else None, COUNTS, BATCH)
    assert plan.chosen is None
    assert sentence(plan, BATCH, 0.2).startswith("Nothing can be said: ")
    assert words in sentence(plan, BATCH, 0.2)


def test_the_same_measurements_give_the_same_answer() -> None:
    first, second = (make_plan(branches(noise=512), timed(FAST_LINK), COUNTS, BATCH) for _ in range(2))
    assert first == second


def test_a_critical_batch_beyond_what_was_tried_is_above_it_and_no_number() -> None:
    planted = 2.5129 * 16384 / BATCH
    known = branches(noise=16384, largest=8)
    for found in criticals(known).values():
        assert found.is_above
        assert found.tried == 8 < planted
        assert found.bounds[1] == float("inf")
        assert found.words(BATCH) == "above 256, the largest that was tried"
    rows = critical_batches(known, BATCH)
    assert [(row["critical_batch"], row["critical_interval"], row["critical_above"]) for row in rows] == [(None, None, 256)]
    assert "The critical batch is above 256" in sentence(make_plan(known, timed(FAST_LINK), COUNTS, BATCH), BATCH, 0.1)


def test_a_critical_batch_within_what_was_tried_has_an_interval_that_holds_it() -> None:
    (found,) = criticals(branches(noise=64)).values()
    low, high = found.bounds
    assert not found.is_above
    assert low <= found.value <= high
    assert found.value < found.tried
    assert 1 / 1.3 < found.value * BATCH / (2.5129 * 64) < 1.3


def test_a_target_that_the_training_reaches_is_named_and_what_is_least_certain() -> None:
    plan = make_plan(branches(noise=512), timed(FAST_LINK, 0.1), COUNTS, BATCH, target=0.123)
    assert "to val/acc 0.123 as" in sentence(plan, BATCH, 0.1, "val/acc")
    assert plan.candidates[-1].least_certain in (STATISTICS, THROUGHPUT)
    assert plan.candidates[0].seconds.mean == pytest.approx(1e-3 + 1e-3 / BATCH, rel=0.2)
    unsure = make_plan(branches(noise=512), timed(FAST_LINK, 0.8), COUNTS, BATCH)
    assert "too uncertain, by their throughput most" in sentence(unsure, BATCH, 0.1)


def test_best_rates_are_given_for_the_batches_that_were_measured() -> None:
    (row,) = critical_batches(branches(noise=1e5, largest=8), BATCH)
    assert list(row["best_rate"]) == list(row["efficiency"]) == [32, 64, 128, 256]
