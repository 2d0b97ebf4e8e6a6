"""Data: here scikit-learn's digits, which need no download; put yours in their place."""

from typing import Any

import torch
from lockstep.datamodules import DataModule, DataSpec, Splits
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

TEST = 360  # images, the last ones


class Images(DataModule):
    """1,797 images of digits, 8x8. What must be downloaded is for `prepare_data`, which runs once per node."""

    def __init__(self, **loading: Any) -> None:
        super().__init__(**loading)
        self.spec = DataSpec(input_shape=(1, 8, 8), num_outputs=10, class_names=tuple("0123456789"))

    def load(self) -> Splits:
        pixels, labels = load_digits(return_X_y=True)
        images, targets = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
        test = TensorDataset(images[-TEST:], targets[-TEST:])
        return self.drawn(TensorDataset(images[:-TEST], targets[:-TEST]), test=test)  # val is drawn from train, with the seed
