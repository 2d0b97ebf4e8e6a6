"""Counts that were not measured, by hand."""

import pytest

from lockstep.extras.report.prediction import Network, Workload, what_if
from lockstep.extras.report.step_model import StepModel

STEP = StepModel(fixed=0.002, per_sample=1e-3, transfer=0.01, latency=1e-4, overlap=0.001)
WEAK, STRONG = Workload(batch=8), Workload(global_batch=64)


def test_efficiency_of_weak_and_of_strong_scaling() -> None:
    """Exposed on four: 2 * 3/4 * 10 ms + 6 * 0.1 ms - 1 ms = 14.6 ms."""
    assert WEAK.seconds(STEP, 4) == pytest.approx(0.0246)
    assert WEAK.efficiency(STEP, 4) == pytest.approx(0.010 / 0.0246)
    assert STRONG.efficiency(STEP, 4) == pytest.approx(0.066 / (4 * 0.0326))
    assert WEAK.efficiency(STEP, 1) == STRONG.efficiency(STEP, 1) == 1.0


def test_terms_add_up_to_the_model_s_step() -> None:
    for devices in (1, 2, 64):
        assert sum(WEAK.terms(STEP, devices).values()) == pytest.approx(STEP.seconds(devices, 8))
    assert WEAK.seconds(StepModel(per_sample=1e-3, transfer=0.01, overlap=1.0), 8) == pytest.approx(0.008)  # all is hidden


def test_several_nodes_have_a_second_bandwidth() -> None:
    """16 devices on two nodes: a ring over eight, and one over two."""
    two_nodes = Workload(batch=8, network=Network(8, transfer=0.1, latency=1e-3))
    inner, outer = 2 * 7 / 8 * 0.01 + 14 * 1e-4, 2 * 1 / 2 * 0.1 + 2 * 1e-3
    assert two_nodes.seconds(STEP, 16) == pytest.approx(0.010 + inner + outer - 0.001)
    assert two_nodes.seconds(STEP, 8) == pytest.approx(WEAK.seconds(STEP, 8))  # one node has no second network
    assert two_nodes.limit(STEP, 16) == "bandwidth between nodes"


def test_the_limiting_term_is_named() -> None:
    assert WEAK.limit(STEP, 1) == "compute"
    assert WEAK.limit(STEP, 4) == "bandwidth"
    assert WEAK.limit(STEP, 1024) == "latency"  # it grows with the number of devices, bandwidth's part does not
    assert WEAK.limit(StepModel(fixed=1.0, per_sample=1e-3), 64) == "compute"
    assert STRONG.limit(StepModel(fixed=0.01, per_sample=1e-3), 64) == "fixed cost"


def test_what_would_help() -> None:
    now = WEAK.efficiency(STEP, 4)
    gains = {name: efficiency - now for name, efficiency in what_if(WEAK, STEP, 4).items()}
    assert gains["accumulation over 4 batches"] == pytest.approx(0.040 / 0.0546 - now)
    assert gains["twice the batch"] == pytest.approx(0.018 / 0.0326 - now)
    assert gains["gradients in half as many bytes (16-bit)"] == pytest.approx(0.010 / 0.0171 - now)
    assert gains["buckets twice as large (half the messages)"] == pytest.approx(0.010 / 0.0243 - now)
    between = Workload(batch=8, network=Network(2, transfer=0.1, latency=1e-3))
    assert min(what_if(between, STEP, 4).values()) > between.efficiency(STEP, 4)
