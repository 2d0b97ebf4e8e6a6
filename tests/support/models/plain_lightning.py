"""A LightningModule and a LightningDataModule as people write them: what is here knows nothing of this package."""

from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy


class DigitsData(LightningDataModule):
    """1,796 handwritten digits, of which 1,400 are trained on."""

    def __init__(self, batch_size: int = 32, num_workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        images, labels = load_digits(return_X_y=True)
        everything = TensorDataset(torch.tensor(images[:1796], dtype=torch.float32) / 16, torch.tensor(labels[:1796]))
        generator = torch.Generator().manual_seed(42)
        self.train, self.val, self.test = random_split(everything, [1400, 198, 198], generator=generator)

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, self.hparams["batch_size"], num_workers=self.hparams["num_workers"], **options)

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.test)

    def predict_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.test)


class LitClassifier(LightningModule):
    """Dropout, its own metrics, its own optimizer and schedule; it keeps its network among its hyperparameters."""

    def __init__(self, hidden: int = 32, lr: float = 0.05, dropout: float = 0.2, net: nn.Module | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        first = (nn.Linear(64, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(dropout))
        self.net = net or nn.Sequential(*first, nn.Linear(hidden, 10))
        self.train_acc, self.val_acc, self.test_acc = (MulticlassAccuracy(10, average="micro") for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = functional.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True, sync_dist=True)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log("val_loss", functional.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", self.val_acc, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.test_acc(self(x), y)
        self.log("test_acc", self.test_acc)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        return {"class": logits.argmax(dim=1), "logits": logits}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_callbacks(self) -> Any:
        return [LearningRateMonitor()]


class LitAdversary(LightningModule):
    """Two nets, each with an optimizer of its own: manual optimization."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 64))
        self.critic = nn.Sequential(nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        of_generator, of_critic = self.optimizers()  # pyright: ignore
        fake = self.generator(torch.randn(len(real), 4, device=self.device, dtype=real.dtype))

        loss = functional.softplus(-self.critic(fake)).mean()
        of_generator.zero_grad()
        self.toggle_optimizer(of_generator)
        self.manual_backward(loss)
        of_generator.step()
        self.untoggle_optimizer(of_generator)

        critic_loss = functional.softplus(-self.critic(real)).mean() + functional.softplus(self.critic(fake.detach())).mean()
        of_critic.zero_grad()
        self.toggle_optimizer(of_critic)
        self.manual_backward(critic_loss)
        of_critic.step()
        self.untoggle_optimizer(of_critic)
        self.log_dict({"generator_loss": loss, "critic_loss": critic_loss})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_realness", self.critic(batch[0]).mean(), sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_realness", self.critic(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.critic)]


class LitRows(LightningModule):
    """A digit read row by row by a recurrent net, with loaders of its own, and a schedule that looks at a metric."""

    def __init__(self, hidden: int = 8, batch_size: int = 100) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rnn, self.head = nn.GRU(8, hidden, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(hidden, 10)
        self.data = DigitsData(batch_size)
        self.data.setup("fit")

    def train_dataloader(self) -> DataLoader[Any]:
        return self.data.train_dataloader()

    def val_dataloader(self) -> DataLoader[Any]:
        return self.data.val_dataloader()

    def test_dataloader(self) -> DataLoader[Any]:
        return self.data.test_dataloader()

    def _step(self, batch: Any, stage: str) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self.head(self.rnn(x.unflatten(1, (8, 8)))[0][:, -1]), y)
        self.log(f"{stage}_loss", loss, on_epoch=True)
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._step(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._step(batch, "test")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.RMSprop(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
