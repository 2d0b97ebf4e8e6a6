"""torchvision's labelled image sets, held in memory as uint8."""

from typing import Any, Literal

import torch
import torchvision
from torch.utils.data import TensorDataset

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.errors import config_error

_SHAPES = {"MNIST": (1, 28, 28), "FashionMNIST": (1, 28, 28), "KMNIST": (1, 28, 28), "CIFAR10": (3, 32, 32)}


class TorchvisionImages(DataModule):
    """A data set of torchvision with the root `data_dir`. Validation is drawn from the official training set with the seed."""

    def __init__(self, dataset: Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10"], data_dir: str, **loading: Any) -> None:
        super().__init__(**loading)
        self.dataset, self.data_dir = dataset, data_dir
        self.spec = DataSpec(_SHAPES[dataset], num_outputs=10)

    def prepare_data(self) -> None:
        """Download the files if they are missing. Raise ConfigError if that fails."""
        try:
            self._read(train=True, download=True)
            self._read(train=False, download=True)
        except (RuntimeError, OSError) as error:  # URLError is an OSError
            failed = f"{self.dataset} is not there and can't be downloaded ({error}); put torchvision's files there"
            raise config_error("datamodule.data_dir", self.data_dir, failed) from error

    def load(self) -> Splits:
        """Read the images (n, channels, height, width) and the class indices (n,)."""
        return self.drawn(self._read(train=True), test=self._read(train=False))

    def _read(self, train: bool, download: bool = False) -> TensorDataset:
        dataset = getattr(torchvision.datasets, self.dataset)(self.data_dir, train=train, download=download)
        images = torch.as_tensor(dataset.data)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return TensorDataset(images, torch.as_tensor(dataset.targets))
