"""A plain LightningDataModule: here of scikit-learn's digits, which need no download; put yours in their place."""

from typing import Any

import torch
from lightning import LightningDataModule
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Images(LightningDataModule):
    """1,797 images of digits, 64 pixels each."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        pixels, labels = load_digits(return_X_y=True)
        digits = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
        generator = torch.Generator().manual_seed(0)
        self.train, self.val, self.test = random_split(digits, [1397, 200, 200], generator)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, self.batch_size)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, self.batch_size)
