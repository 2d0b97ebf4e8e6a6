"""The default data set, which is part of scikit-learn."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lockstep.datamodules.base import DataModule, DataSpec, Splits

TEST_LENGTH = 360


class Digits(DataModule):
    """1,797 handwritten digits of 8x8 pixels, floats from 0 to 1 (scikit-learn's copy of UCI's optdigits test set).

    The data is ordered by writer and has no official split. The last 360 digits, from writers that do not occur in the training
    data, are the test set for every seed.
    """

    spec = DataSpec(input_shape=(1, 8, 8), num_outputs=10, class_names=tuple("0123456789"))

    def load(self) -> Splits:
        images, targets = digits()
        train, test = slice(-TEST_LENGTH), slice(-TEST_LENGTH, None)
        return self.drawn(TensorDataset(images[train], targets[train]), test=TensorDataset(images[test], targets[test]))


def digits() -> tuple[Tensor, Tensor]:
    """Return the data of sklearn.datasets.load_digits as float32 (1797, 1, 8, 8) from 0 to 1, and int64 (1797,).

    Its file is read directly, because importing scikit-learn takes more than a second and 66 MiB, mostly for SciPy.
    """
    spec: Any = find_spec("sklearn")
    rows = numpy.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", numpy.uint8, delimiter=",")
    return torch.tensor(rows[:, :-1], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(rows[:, -1]).long()
