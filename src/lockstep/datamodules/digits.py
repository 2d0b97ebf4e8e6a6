"""The default: real data that ships inside a dependency."""

from typing import Any

import torch
from sklearn.datasets import load_digits

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.datamodules.batches import InMemory

TEST_LENGTH = 360


class Digits(DataModule):
    """1,797 handwritten digits of 8x8 pixels, floats from 0 to 1 (scikit-learn's copy of UCI's optdigits test set).

    The data comes in the order of its writers and has no official split: the last 360 digits, by writers who are not
    in the training data, are the test set whatever the seed.
    """

    test_note = "test: digits of writers that training has not seen; val: other digits of the same writers, and easier"

    def __init__(self, **loading: Any) -> None:
        super().__init__(**loading)
        self.spec = DataSpec(input_shape=(1, 8, 8), num_outputs=10, class_names=tuple("0123456789"))

    def load(self) -> Splits:
        bunch: Any = load_digits()
        images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
        targets = torch.tensor(bunch.target)
        train, val = self.split(len(images) - TEST_LENGTH)
        return Splits(
            train=InMemory(images[train], targets[train]),
            val=InMemory(images[val], targets[val]) if len(val) else None,
            test=InMemory(images[-TEST_LENGTH:], targets[-TEST_LENGTH:]),
        )
