"""What is made of the values that ranks have logged under one name."""

import math

import pytest

from lockstep.extras.plain_lightning.logs import Logged, combine, explain_difference


def logged(value: float, weight: float = 1.0, reduction: str = "mean", hook: str = "validation_step") -> Logged:
    return Logged(hook, ("val_loss",), reduction, value, weight)


@pytest.mark.parametrize(
    ("parts", "combined"),
    [
        ([logged(6.0, 4), logged(1.0, 1)], 7.0 / 5),
        ([logged(6.0, 4), logged(0.0, 0)], 1.5),
        ([logged(3.0, reduction="sum"), logged(4.0, reduction="sum")], 7.0),
        ([logged(3.0, reduction="max"), logged(4.0, reduction="max")], 4.0),
    ],
)
def test_values_are_combined_as_on_one_process(parts: list[Logged], combined: float) -> None:
    assert combine(parts) == combined


def test_a_mean_over_no_sample_is_no_number() -> None:
    assert math.isnan(combine([logged(0.0, 0), logged(0.0, 0)]))


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ([logged(1.0)], "val_loss is logged by 1 of 2 processes alone"),
        ([logged(1.0), logged(2.0)], None),
        ([logged(1.0, hook="on_train_batch_end.0"), logged(2.0)], None),
        ([logged(1.0, hook="on_validation_epoch_end"), logged(1.0)], None),
        (
            [logged(1.0, hook="on_validation_epoch_end"), logged(2.0)],
            "val_loss, logged in on_validation_epoch_end, differs between",
        ),
    ],
)
def test_a_name_that_can_not_be_the_same_is_said(parts: list[Logged], line: str | None) -> None:
    lines = explain_difference(parts, len(parts), 2)
    assert len(lines) == (line is not None)
    assert all(said.startswith(str(line)) for said in lines)
