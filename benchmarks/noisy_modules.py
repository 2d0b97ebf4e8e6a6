"""Kinds of Lightning code with noise, drawn by lockstep.noise, and data with random transforms, drawn as ever."""

import random
from typing import Any

import numpy
import torch
from lightning import LightningDataModule, LightningModule
from lightning_modules import GAN, Classifier, Vectors
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from lockstep import noise
from lockstep.nets import Dropout


class NoisyGAN(GAN):
    """The noise is drawn in the step, as in Lightning's own example."""

    def latent(self, real: Tensor) -> Tensor:
        return torch.randn(len(real), 2, dtype=real.dtype)


class CountedGAN(GAN):
    def latent(self, real: Tensor) -> Tensor:
        return noise.randn_like(real[:, :2])


class Mixup(Classifier):
    """Zhang et al. 2018, arXiv:1710.09412, over the global batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        other, weight = noise.randperm(len(x)), noise.of_batch().beta(0.4, 0.4)
        logits = self.net(weight * x + (1 - weight) * noise.gather(x)[other])
        losses = [functional.cross_entropy(logits, target) for target in (y, noise.gather(y)[other])]
        loss = weight * losses[0] + (1 - weight) * losses[1]
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


class VAE(LightningModule):
    """Kingma and Welling 2014, arXiv:1312.6114; its validation draws, too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(2, 8)

    def loss(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + noise.randn_like(mean) * (log_variance / 2).exp()
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1) / 2
        return ((self.decoder(code) - x).square().sum(dim=1) + divergence).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("train_loss", loss := self.loss(batch[0]), on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Diffusion(VAE):
    """A time and a noise for each sample, as by Ho et al. 2020, arXiv:2006.11239."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 8))

    def loss(self, x: Tensor) -> Tensor:
        time = noise.rand_like(x[:, :1])
        drawn = noise.randn_like(x)
        mixed = (1 - time).sqrt() * x + time.sqrt() * drawn
        return functional.mse_loss(self.net(torch.cat([mixed, time], dim=1)), drawn)


class Dropped(Classifier):
    """Dropout by lockstep.nets.Dropout, and by a call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), Dropout(0.3), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((noise.dropout(batch[0], 0.2), batch[1]), batch_idx)


class Augmented(Classifier):
    """As augmentation on a GPU does, in the hook behind the transfer; its step draws other numbers."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return (batch[0] + noise.randn_like(batch[0]), batch[1]) if self.trainer.training else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch[0] - noise.randn_like(batch[0]), batch[1]), batch_idx)


class Transformed(Dataset[Any]):
    """Samples that each of the three generators moves."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        return x + torch.randn(8, dtype=x.dtype) * random.random() + numpy.random.rand(), y


class RandomTransforms(Vectors):
    def train_dataloader(self) -> Any:
        return DataLoader(Transformed(self.train), self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Transformed(self.val), self.batch_size)


KINDS: dict[str, tuple[type[LightningModule], type[LightningDataModule] | None]] = {
    "GAN, noise drawn in the step": (NoisyGAN, Vectors),
    "GAN, noise by lockstep.noise": (CountedGAN, Vectors),
    "mixup": (Mixup, Vectors),
    "variational autoencoder": (VAE, Vectors),
    "diffusion": (Diffusion, Vectors),
    "dropout": (Dropped, Vectors),
    "augmentation behind the transfer": (Augmented, Vectors),
    "random transforms": (Classifier, RandomTransforms),
}
