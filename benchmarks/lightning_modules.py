"""Kinds of Lightning code, in the style of public examples. What is here knows nothing of this package, but for `Stream`, which
says how it is divided."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lockstep.plain_lightning.streams import Shard

TRAIN, VAL = 50, 21  # samples: neither divides by 12, the batch of all processes, nor by 2 or 3


def vectors(length: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(length, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, :3] * torch.tensor([1.0, 2.0, 0.5])).argmax(dim=1))


def images(length: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(length, 1, 6, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, 0] > 0.6).long())


class Vectors(LightningDataModule):
    def __init__(self, batch_size: int = 12) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.train, self.val = vectors(TRAIN, 0), vectors(VAL, 1)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, self.batch_size)


class Images(Vectors):
    def setup(self, stage: str) -> None:
        self.train, self.val = images(TRAIN, 0), images(VAL, 1)


class SeveralValidations(Vectors):
    def val_dataloader(self) -> Any:
        return [DataLoader(self.val, self.batch_size), DataLoader(vectors(10, 2), self.batch_size)]


class Rows(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from list(vectors(48, 0))  # pyright: ignore


class Stream(Vectors):
    def train_dataloader(self) -> Any:
        return DataLoader(Shard(Rows()), self.batch_size)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


class Classifier(LightningModule):
    """Loss and accuracy logged with Lightning's defaults: no sync_dist."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = mlp()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", functional.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(dim=1) == y).double().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Segmentation(Classifier):
    """A class for each pixel, and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.net = nn.Sequential(first, nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))


class GAN(LightningModule):
    """Manual optimization, two optimizers, of which one rests while the other steps. The noise is the sample's own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 8))
        self.critic = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))

    def latent(self, real: Tensor) -> Tensor:
        return torch.sin(real[:, :2] * 100)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        first, second = self.optimizers()  # pyright: ignore
        latent = self.latent(real)

        self.toggle_optimizer(first)
        loss = functional.softplus(-self.critic(self.generator(latent))).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)

        self.toggle_optimizer(second)
        fake = self.generator(latent).detach()
        critic_loss = functional.softplus(-self.critic(real)).mean() + functional.softplus(self.critic(fake)).mean()
        second.zero_grad()
        self.manual_backward(critic_loss)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"generator_loss": loss, "critic_loss": critic_loss}, on_step=False, on_epoch=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_realness", self.critic(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.generator, self.critic)]


class Contrastive(Classifier):
    """The other samples of the batch are the negatives."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        one, other = (functional.normalize(self.net(view), dim=1) for view in (x, x.flip(1)))
        loss = functional.cross_entropy(one @ other.T / 0.5, torch.arange(len(x)))
        self.log("train_loss", loss)
        return loss


class Gathered(Contrastive):
    """The negatives of all processes, by Lightning's all_gather."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        views = [functional.normalize(self.net(view), dim=1) for view in (x, x.flip(1))]
        if self.trainer.world_size > 1:
            views = [self.all_gather(view, sync_grads=True).flatten(0, 1) for view in views]  # pyright: ignore
        loss = functional.cross_entropy(views[0] @ views[1].T / 0.5, torch.arange(len(views[0])))
        self.log("train_loss", loss)
        return loss


class Teacher(LightningModule):
    """A teacher that follows the student, and a centre of what it has seen, as in DINO; its validation draws the views."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(), mlp().requires_grad_(False)
        self.register_buffer("centre", torch.zeros(3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen = self.teacher(batch[0])
        targets = ((self.seen - self.centre) / 0.5).softmax(dim=1)
        return -(targets * self.student(batch[0].flip(1)).log_softmax(dim=1)).sum(dim=1).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.centre.lerp_(self.seen.mean(dim=0), 0.1)
        for student, teacher in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
            teacher.lerp_(student.detach(), 0.1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        view = batch[0] + 0.1 * torch.randn_like(batch[0])
        self.log("val_loss", (self.student(view) - self.teacher(batch[0])).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.student.parameters(), lr=0.1)


class Recurrent(Classifier):
    """The hidden state of one batch begins the next."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)
        self.net = nn.Identity()
        self.hidden: Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        start = None if self.hidden is None or self.hidden.shape[1] != len(x) else self.hidden
        outputs, hidden = self.rnn(x[..., None], start)
        self.hidden = hidden.detach()
        loss = functional.cross_entropy(self.head(outputs[:, -1]), y)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self.head(self.rnn(x[..., None])[0][:, -1]), y))


class OwnLoaders(Classifier):
    def __init__(self, batch_size: int = 12) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(vectors(TRAIN, 0), self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(vectors(VAL, 1), self.batch_size)


class Metrics(Classifier):
    """torchmetrics, logged as objects and by hand at the end of an epoch; a sum, and a mean that says of how many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.train_acc, self.val_f1 = MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        self.log("train_hits", (logits.argmax(dim=1) == y).double().sum(), on_step=False, on_epoch=True, reduce_fx="sum")
        loss = functional.cross_entropy(logits, y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.val_f1.update(self.net(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.log("val_f1", self.val_f1.compute())
        self.val_f1.reset()


class Collected(Classifier):
    """A value of the samples that each process has kept, logged at the end of an epoch."""

    def on_validation_epoch_start(self) -> None:
        self.kept: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.kept.append(self.net(batch[0]).max(dim=1).values)

    def on_validation_epoch_end(self) -> None:
        self.log("val_median", torch.cat(self.kept).median())


# By name: the module, and its data; None where it has loaders of its own.
KINDS: dict[str, tuple[type[LightningModule], type[LightningDataModule] | None]] = {
    "classifier": (Classifier, Vectors),
    "segmentation, BatchNorm": (Segmentation, Images),
    "GAN, two optimizers by hand": (GAN, Vectors),
    "in-batch negatives": (Contrastive, Vectors),
    "negatives of all processes": (Gathered, Vectors),
    "teacher with a centre": (Teacher, Vectors),
    "hidden state between batches": (Recurrent, Vectors),
    "several validation loaders": (Classifier, SeveralValidations),
    "loaders of its own": (OwnLoaders, None),
    "torchmetrics": (Metrics, Vectors),
    "a metric by hand": (Collected, Vectors),
    "stream": (Classifier, Stream),
}
