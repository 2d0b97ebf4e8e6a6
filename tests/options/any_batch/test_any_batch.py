"""A batch may be of any shape."""

from typing import Any

import pytest
import torch

from lockstep.plain_lightning.any_batch import samples_in


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ({"ids": torch.arange(3), "mask": torch.ones(3)}, 3),
        ((torch.ones(2, 4), torch.ones(2)), 2),
        ([{"name": "x", "boxes": torch.ones(5, 4)}], 5),
        ({"scale": torch.tensor(1.0)}, None),
        ("text", None),
    ],
)
def test_how_many_samples_a_batch_has(batch: Any, samples: int | None) -> None:
    assert samples_in(batch) == samples
