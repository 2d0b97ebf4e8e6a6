"""What a sample is worth in a larger batch: more devices are taken for goodput, not for throughput."""

from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell

from lockstep.extras.report import choice, measurements
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.report.goodput import worth
from lockstep.extras.report.model_sections import checked_predictions
from lockstep.extras.report.sections import scaling
from lockstep.extras.report.step_model import StepModel

STEPS = {1: 0.0100, 2: 0.0102, 4: 0.0104}  # seconds: nearly ideal


def analyze(folder: Path, cells: list[dict[str, Any]], **known: Any) -> Analysis:
    return Analysis(measurements.read(measured.sweep(folder, cells)), **known)


def epochs(*values: float) -> list[dict[str, Any]]:
    return [{"epoch": n + 1, "seconds": n + 1.0, "metrics": {"val/acc": value}} for n, value in enumerate(values)]


def said(analysis: Analysis) -> tuple[list[str], list[list[str]], str]:
    """Columns and rows of the first table, and the last text."""
    blocks = [*scaling(analysis)]
    table = next(block for block in blocks if "table" in block)
    return table["columns"], table["table"], [block["text"] for block in blocks if "text" in block][-1]


def test_a_batch_of_the_noise_scale_needs_twice_the_fewest_samples() -> None:
    assert worth(1e-9, 100.0, 100.0) == pytest.approx(0.5)
    assert worth(32, 64, 96.0) == pytest.approx(128 / 160)


def test_a_batch_far_above_the_noise_scale_is_not_worth_its_devices(tmp_path: Path) -> None:
    """32 samples of each device; at a noise scale of 32, twice the batch is worth 64/96; 1.96x the speed is 1.31x."""
    analysis = analyze(tmp_path, [cell(n, step=step, noise_scale_mean=32.0) for n, step in STEPS.items()])
    assert analysis.goodput is not None
    assert analysis.goodput.efficiency == {1: 1.0, 2: pytest.approx(64 / 96), 4: pytest.approx(64 / 160)}
    assert choice.answer(analysis) == (
        "Take 1 device at lr 0.1: val/acc 0.9, and more devices are not worth it; 2 give 1.3x the goodput and cost 1.5x the "
        "device-hours."
    )
    columns, rows, text = said(analysis)
    place = columns.index("worth of a sample")
    assert [row[place : place + 2] for row in rows] == [["1.00", "1.00"], ["0.67", "1.31"], ["0.40", "1.54"]]
    assert text.endswith("; what a sample is worth follows from the gradient noise scale of 32 samples.")


def test_far_below_it_they_are_and_what_is_predicted_is_goodput_too(tmp_path: Path) -> None:
    cells = [cell(n, step=step, noise_scale_mean=640.0) for n, step in STEPS.items()]
    line = choice.answer(analyze(tmp_path, cells))
    assert line.startswith("Take 4 devices at lr 0.1: 3.4x the goodput of one device (3.8x the speed) at the same val/acc (0.9,")
    assert "x the goodput and cost " in line
    assert line.endswith("x the device-hours (predicted).")


def test_losses_at_equal_samples_come_before_the_noise_scale(tmp_path: Path) -> None:
    """0.8, the best that all have reached, after 2, 2.5 and 4 epochs; between two epochs by a straight line."""
    curves = {1: (0.6, 0.8, 0.9, 0.9), 2: (0.5, 0.75, 0.85, 0.9), 4: (0.4, 0.6, 0.7, 0.8)}
    cells = [
        cell(n, step=STEPS[n], metric=0.9, history=epochs(*curve), samples_per_epoch=1000, noise_scale_mean=1e9)
        for n, curve in curves.items()
    ]
    analysis = analyze(tmp_path, cells)
    assert analysis.goodput is not None
    assert analysis.goodput.efficiency == {1: 1.0, 2: pytest.approx(0.8), 4: pytest.approx(0.5)}
    assert analysis.goodput.source == "what a sample is worth follows from how many each count needed until 0.8"
    assert choice.answer(analysis).startswith(
        "Take 2 devices at lr 0.1: 1.6x the goodput of one device (2x the speed) at the same"
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"global_batch": 64}, "; a sample is worth the same at one global batch."),
        (
            {},
            "; no noise scale, and no losses of 3 epochs, say what a sample of a larger batch is worth, so that throughput "
            "decides.",
        ),
        ({"history": epochs(0.8, 0.9)}, "say what a sample of a larger batch is worth, so that throughput decides."),
    ],
)
def test_where_goodput_is_throughput(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    cells = [cell(n, step=0.01 / n if "global_batch" in more else step, **more) for n, step in STEPS.items()]
    analysis = analyze(tmp_path, cells)
    columns, _, text = said(analysis)
    assert "goodput" not in columns
    assert text.endswith(why)
    assert choice.answer(analysis).startswith("Take 4 devices at lr 0.1: ")


def test_each_count_is_predicted_from_the_smaller_ones(tmp_path: Path) -> None:
    """By a step of 1 ms + 0.2 ms a sample, and 0.5 ms of latency for each message: the fits are exact, and eight devices are a
    tenth slower than that."""
    step = StepModel(fixed=0.001, per_sample=2e-4, latency=5e-4)
    times = {n: step.seconds(n, 32) * (1.1 if n == 8 else 1.0) for n in (1, 2, 4, 8)}
    cells = [cell(n, seed=seed, step=time * (1 + 1e-4 * seed)) for n, time in times.items() for seed in (0, 1)]
    heading, table, text = checked_predictions(analyze(tmp_path, cells, all_reduce={"latency": 5e-4}))
    assert heading["heading"] == "Prediction and measurement"
    assert [row[:2] for row in table["table"]] == [["4", "1, 2"], ["8", "1, 2, 4"]]
    four, eight = table["table"]
    assert abs(float(four[4].rstrip("%"))) < 0.3
    assert (four[5], eight[5]) == ("yes", "no")
    assert float(eight[4].rstrip("%")) == pytest.approx(10, abs=0.3)  # it was predicted to be faster
    assert text["text"].startswith("Each count is predicted by a fit to the smaller ones alone.")


def test_two_counts_check_nothing(tmp_path: Path) -> None:
    assert not [*checked_predictions(analyze(tmp_path, [cell(1), cell(2, step=0.012)]))]
