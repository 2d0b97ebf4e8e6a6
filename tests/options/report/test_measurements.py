"""What is read of a sweep's directory."""

from pathlib import Path

import measured
import pytest
from measured import cell

from lockstep.errors import ConfigError
from lockstep.report.measurements import DIVERGED, MISSING, read


def test_jobs_that_have_not_finished_are_rows_with_their_reason(tmp_path: Path) -> None:
    """Their overrides are known."""
    cells = [
        cell(2, status="failed", reason="rank 1: ValueError: boom"),
        cell(2, lr=1.0, status="failed", reason="rank 0: at step 3 the loss is nan, of samples 1, 2"),
        cell(2, lr=2.0, status="failed", reason="val/loss not finite"),
        cell(4, status="queued", global_batch=64),
        cell(4, lr=1.0, status="running"),
        cell(4, lr=2.0, status="preempted", reason="preempted by SIGTERM"),
    ]
    rows = read(measured.sweep(tmp_path, cells)).rows
    assert [row.status for row in rows] == ["failed", DIVERGED, DIVERGED, MISSING, MISSING, MISSING]
    assert rows[0].reason == "rank 1: ValueError: boom"
    assert rows[3].reason == "queued"
    assert rows[5].reason == "preempted by SIGTERM"
    assert [row.global_batch for row in rows] == [64, 64, 64, 64, 128, 128]
    assert all(row.samples_per_second is None for row in rows)


def test_a_job_that_was_continued_on_other_devices_counts_for_those(tmp_path: Path) -> None:
    """The speed of two devices counted as that of eight."""
    assert [row.devices for row in read(measured.sweep(tmp_path, [cell(8, world_size=2)])).rows] == [2]


def test_jobs_that_differ_in_other_keys_are_kept_apart(tmp_path: Path) -> None:
    cells = [cell(devices, overrides=(f"model={model}",)) for model in ("mlp", "cnn") for devices in (1, 2)]
    sweep = measured.sweep(tmp_path, [*cells, cell(4, overrides=("model=cnn",))])
    rows = read(sweep)
    assert (rows.rows[0].variant, rows.left_out) == (("model=cnn",), {("model=mlp",): 2})
    assert [row.devices for row in rows.rows] == [1, 2, 4]
    assert [row.devices for row in read(sweep, ["model=mlp"]).rows] == [1, 2]
    with pytest.raises(ConfigError, match="--only=model=vgg: no job has these"):
        read(sweep, ["model=vgg"])


@pytest.mark.parametrize("rate", ["lr", "learning_rate"])
def test_the_rate_of_a_plain_module_is_an_axis(rate: str, tmp_path: Path) -> None:
    read_back = read(measured.sweep(tmp_path, [cell(n, lr, rate=rate) for n in (1, 2) for lr in (0.001, 0.01)]))
    assert [(row.devices, row.lr, row.variant) for row in read_back.rows] == [(n, lr, ()) for n in (1, 2) for lr in (0.001, 0.01)]
    assert not read_back.left_out
