"""The model of a step's time, fitted to timings that were made by it."""

import random

import pytest

from lockstep.extras.report.step_model import StepModel, Timing, fit, ring

BYTES = 100e6
LATENCY, BANDWIDTH = 0.2e-3, 10e9


def simulated(
    truth: StepModel, counts: tuple[int, ...], batch: float = 32, repeats: int = 6, noise: float = 0.01, seed: int = 0
) -> list[Timing]:
    """Of weak scaling, each timing off by a relative error of its own."""
    dice = random.Random(seed)
    return [Timing(n, batch, truth.seconds(n, batch) * dice.gauss(1, noise)) for n in counts for _ in range(repeats)]


def planted(overlap: float = 0.0) -> StepModel:
    return StepModel(per_sample=0.02 / 32, transfer=BYTES / BANDWIDTH, latency=LATENCY, overlap=overlap)


def test_the_formula_by_hand() -> None:
    step = planted(overlap=0.004)
    assert step.seconds(1, 32) == pytest.approx(0.02)
    assert sum(ring(4, step.transfer, step.latency)) == pytest.approx(2 * 3 / 4 * 0.01 + 2 * 3 * 0.0002)
    assert step.seconds(4, 32) == pytest.approx(0.02 + 0.0162 - 0.004)
    assert planted(overlap=1.0).seconds(4, 32) == pytest.approx(0.02)  # all of it is hidden


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("overlap", [0.0, 0.003])
def test_planted_latency_and_bandwidth_are_fitted_within_a_tenth(overlap: float, seed: int) -> None:
    truth = planted(overlap)
    fitted = fit(simulated(truth, (1, 2, 4, 8, 16, 32), repeats=8, noise=0.005, seed=seed))
    assert fitted is not None
    assert fitted.model.latency == pytest.approx(LATENCY, rel=0.1)
    assert BYTES / fitted.model.transfer == pytest.approx(BANDWIDTH, rel=0.1)
    assert fitted.noise == pytest.approx(0.005, rel=0.3)


def test_the_truth_lies_within_the_interval_as_often_as_it_says() -> None:
    truth, inside = planted(), 0
    for seed in range(20):
        fitted = fit(simulated(truth, (1, 2, 4, 8, 16), seed=seed))
        low, high = (fitted and fitted.predict(lambda step: step.latency).interval) or (0.0, 0.0)
        inside += low < LATENCY < high
    assert inside >= 17  # of 20: 19 are to be expected


@pytest.mark.parametrize("counts", [(1, 2, 4), (1, 2, 4, 8), (2, 4, 8)])
@pytest.mark.parametrize("overlap", [0.0, 0.003])
def test_twice_the_largest_count_is_predicted_within_a_tenth(counts: tuple[int, ...], overlap: float) -> None:
    truth = planted(overlap)
    fitted = fit(simulated(truth, counts))
    assert fitted is not None
    more = 2 * counts[-1]
    predicted = fitted.predict(lambda step: step.seconds(more, 32))
    assert predicted.mean == pytest.approx(truth.seconds(more, 32), rel=0.1)
    low, high = predicted.interval or (0.0, 0.0)
    assert low < truth.seconds(more, 32) < high


def test_strong_scaling_predicts_though_it_can_not_tell_bandwidth_from_a_fixed_cost() -> None:
    truth = StepModel(fixed=0.002, per_sample=1e-4, transfer=0.004, latency=1e-4)
    timings = [one for n in (1, 2, 4, 8, 16) for one in simulated(truth, (n,), batch=512 / n, noise=0.003, seed=n)]
    fitted = fit(timings)
    assert fitted is not None
    assert not fitted.is_sure_of("transfer")
    assert fitted.is_sure_of("latency")
    assert fitted.model.latency == pytest.approx(1e-4, rel=0.1)
    assert fitted.model.seconds(32, 16) == pytest.approx(truth.seconds(32, 16), rel=0.05)


def test_two_counts_leave_open_which_term_it_is() -> None:
    """All of it bandwidth, or all of it latency: the prediction covers both."""
    truth = planted()
    fitted = fit(simulated(truth, (1, 2)))
    assert fitted is not None
    assert {one.free for one in fitted.candidates} == {("per_sample", "transfer"), ("per_sample", "latency")}
    assert not fitted.is_sure_of("latency")
    low, high = fitted.predict(lambda step: step.seconds(16, 32)).interval or (0.0, 0.0)
    assert low < truth.seconds(16, 32) < high
    assert high > 2 * low


def test_what_was_measured_elsewhere_is_taken_as_given() -> None:
    """Then two counts are enough."""
    truth = planted(overlap=0.003)
    fitted = fit(simulated(truth, (1, 2), noise=0.003), given={"latency": truth.latency, "transfer": truth.transfer})
    assert fitted is not None
    assert fitted.model.overlap == pytest.approx(0.003, rel=0.1)
    assert fitted.model.seconds(16, 32) == pytest.approx(truth.seconds(16, 32), rel=0.02)


def test_communication_that_costs_nothing_is_not_made_up() -> None:
    fitted = fit(simulated(StepModel(per_sample=1e-3), (1, 2, 4, 8)))
    assert fitted is not None
    assert fitted.candidates[0].free == ("per_sample",)
    assert fitted.model.seconds(64, 32) == pytest.approx(0.032, rel=0.02)


def test_one_count_says_nothing_of_communication() -> None:
    assert fit(simulated(planted(), (4,))) is None
    assert fit([]) is None


def test_timings_without_repeats_are_taken_to_be_off_by_two_percent() -> None:
    fitted = fit(simulated(planted(), (1, 2, 4, 8), repeats=1))
    assert fitted is not None
    assert fitted.noise == 0.02
