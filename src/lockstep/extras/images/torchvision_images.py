"""torchvision's labelled image sets, held in memory as uint8."""

import shutil
from pathlib import Path
from typing import Any

import numpy
import torch
import torchvision
from torch import Tensor

from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.batches import InMemory
from lockstep.datamodules.splits import Splits
from lockstep.errors import ConfigError, config_error

_SHAPES = {"MNIST": (1, 28, 28), "FashionMNIST": (1, 28, 28), "KMNIST": (1, 28, 28), "CIFAR10": (3, 32, 32)}


class TorchvisionImages(DataModule):
    """MNIST, FashionMNIST, KMNIST or CIFAR10: validation is a seeded part of the official training set. Where the files are
    missing in `data_dir`, torchvision's `root`, they are downloaded once per node."""

    def __init__(self, dataset: str, data_dir: str, **loading: Any) -> None:
        super().__init__(**loading)
        if dataset not in _SHAPES:
            raise config_error("datamodule.dataset", dataset, f"accepted is {', '.join(_SHAPES)}")
        self.dataset, self.data_dir = dataset, Path(data_dir)
        self._class = getattr(torchvision.datasets, dataset)
        self.spec = DataSpec(_SHAPES[dataset], num_outputs=10)

    def prepare_data(self) -> None:
        created = [folder for folder in (self.data_dir, *self.data_dir.absolute().parents) if not folder.exists()]
        try:
            self._read(train=True, download=True)
            self._read(train=False, download=True)
        except ConfigError:
            raise
        except Exception as error:  # the downloaders of torchvision raise RuntimeError, URLError, OSError, ...
            for folder in created:
                shutil.rmtree(folder, ignore_errors=True)
            failed = f"{self.dataset} is not in {self.data_dir.absolute()} and could not be downloaded"
            advice = f"put torchvision's files there, or set it to the folder that has them ({error})"
            raise config_error("datamodule.data_dir", self.data_dir, f"{failed}; {advice}") from error

    def load(self) -> Splits:
        return self.drawn(InMemory(*self._read(train=True)), test=InMemory(*self._read(train=False)))

    def _read(self, train: bool, download: bool = False) -> tuple[Tensor, Tensor]:
        """Images (n, channels, height, width) uint8 and class numbers (n,)."""
        try:
            dataset = self._class(str(self.data_dir), train=train, download=download)
        except (ValueError, EOFError, AssertionError, RuntimeError) as error:  # what a truncated or overwritten file raises
            if "download" in str(error).lower():
                raise
            reason = f"a file of {self.dataset} there is unreadable ({error})"
            raise config_error("datamodule.data_dir", self.data_dir, reason) from error
        images = torch.as_tensor(numpy.asarray(dataset.data))
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return images, torch.as_tensor(dataset.targets)
