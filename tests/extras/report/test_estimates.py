import pytest

from lockstep.extras.report.estimates import estimate, estimate_metric


@pytest.mark.parametrize(
    ("values", "maximize", "beyond"),
    [
        ([0.98, 1.0], True, False),  # an accuracy
        ([0.0, 0.1], True, False),
        ([0.98, 1.0], False, True),  # a loss
        ([0.5, 1.5], True, True),  # a reward
    ],
)
def test_the_interval_of_a_share_does_not_go_beyond_nothing_and_all(values: list[float], maximize: bool, beyond: bool) -> None:
    cut, plain = estimate_metric(values, maximize), estimate(values)
    assert cut.interval is not None
    assert plain.interval is not None
    assert (cut.mean, cut.runs) == (plain.mean, plain.runs)
    assert plain.interval[0] < 0 or plain.interval[1] > 1
    assert (cut.interval == plain.interval) == beyond
    assert beyond or (max(0.0, plain.interval[0]), min(1.0, plain.interval[1])) == cut.interval
