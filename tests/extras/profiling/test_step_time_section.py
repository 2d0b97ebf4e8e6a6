"""Where a step's time goes, in a sweep's report."""

from types import SimpleNamespace

import pytest

from lockstep.extras.profiling.report_section import step_time


def test_the_shares_are_means_over_the_jobs_of_a_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")  # that of a sweep, which would show what matplotlib has to say
    jobs = [{"step_time": {"data": share, "forward": 1 - share}} for share in (0.1, 0.3)]
    blocks = [*step_time(SimpleNamespace(records={1: jobs, 2: [*jobs[:1], {}], 4: [{}]}))]
    assert blocks[0] == {"heading": "Where a step's time goes"}
    assert blocks[2] == {"columns": ["devices", "data", "forward"], "table": [["1", "20%", "80%"], ["2", "10%", "90%"]]}
    (axis,) = blocks[1]["draw"]().axes
    assert [bar.get_width() for bar in axis.patches] == [20, 10, 80, 90]
    assert ([label.get_text() for label in axis.get_yticklabels()], caplog.text) == (["1", "2"], "")


def test_runs_that_recorded_none_have_no_section() -> None:
    assert [*step_time(SimpleNamespace(records={1: [{}], 2: [{}]}))] == []
