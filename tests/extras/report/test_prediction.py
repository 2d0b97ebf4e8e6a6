"""Counts that were not measured, by hand."""

import pytest

from lockstep.extras.report.step_model import StepModel, Workload

STEP = StepModel(fixed=0.002, per_sample=1e-3, transfer=0.01, latency=1e-4, overlap=0.001)
WEAK, STRONG = Workload(batch=8), Workload(global_batch=64)


def test_efficiency_of_weak_and_of_strong_scaling() -> None:
    """Exposed on four: 2 * 3/4 * 10 ms + 6 * 0.1 ms - 1 ms = 14.6 ms."""
    assert sum(WEAK.terms(STEP, 4).values()) == pytest.approx(0.0246)
    assert WEAK.efficiency(STEP, 4) == pytest.approx(0.010 / 0.0246)
    assert STRONG.efficiency(STEP, 4) == pytest.approx(0.066 / (4 * 0.0326))
    assert WEAK.efficiency(STEP, 1) == STRONG.efficiency(STEP, 1) == 1.0


def test_terms_add_up_to_the_model_s_step() -> None:
    for devices in (1, 2, 64):
        assert sum(WEAK.terms(STEP, devices).values()) == pytest.approx(STEP.seconds(devices, 8))
    hidden = StepModel(per_sample=1e-3, transfer=0.01, overlap=1.0)
    assert sum(WEAK.terms(hidden, 8).values()) == pytest.approx(0.008)


def test_the_limiting_term_is_named() -> None:
    assert WEAK.limit(STEP, 1) == "compute"
    assert WEAK.limit(STEP, 4) == "bandwidth"
    assert WEAK.limit(STEP, 1024) == "latency"  # it grows with the number of devices, bandwidth's part does not
    assert WEAK.limit(StepModel(fixed=1.0, per_sample=1e-3), 64) == "compute"
    assert STRONG.limit(StepModel(fixed=0.01, per_sample=1e-3), 64) == "fixed cost"
