"""The gradient noise scale, in a sweep's report."""

from lockstep.extras.noise_scale.report_section import noise_scale


def test_the_largest_mean_says_how_many_devices_pay() -> None:
    """The mean over a training counts, or the last estimate where there is no mean."""
    one = [{"global_batch_size": 32, "noise_scale_mean": scale, "noise_scale": 1.0} for scale in (300.0, 340.0)]
    blocks = [*noise_scale({1: one, 2: [{"global_batch_size": 64, "noise_scale": 100.0}], 4: [{}]})]
    assert blocks[1] == {"columns": ["devices", "noise scale, samples"], "table": [["1", "320"], ["2", "100"]]}
    assert "At 32 samples per device that is 10 devices" in blocks[2]["text"]


def test_runs_that_recorded_none_have_no_section() -> None:
    assert [*noise_scale({1: [{"global_batch_size": 32}]})] == []
