"""LightningModules and data that know nothing of this package."""

import random
from typing import Any

import numpy
import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

CLASSES, WIDTH = 3, 6


class Sequences(Dataset[tuple[Tensor, int]]):
    """Sequences of various lengths, with noise that is drawn for each."""

    def __init__(self, length: int, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.samples = [torch.randn(1 + number % 5, WIDTH, generator=draws) for number in range(length)]
        self.targets = torch.randint(CLASSES, (length,), generator=draws).tolist()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.rand(()) * random.uniform(0.5, 1.5) + float(numpy.random.uniform(0, 0.1))
        return self.samples[index] + 0.1 * noise, self.targets[index]


def padded(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """To the longest of the batch, with some numbers masked at random, as language models have it."""
    inputs = nn.utils.rnn.pad_sequence([sample for sample, _ in samples], batch_first=True)
    return {"x": inputs * (torch.rand(inputs.shape) > 0.1), "y": torch.tensor([target for _, target in samples])}


class Ragged(LightningDataModule):
    """57 samples of training, and two validation loaders."""

    def __init__(self, batch_size: int = 3, workers: int = 0, drop_last: bool = False) -> None:
        super().__init__()
        self.options: Any = {"batch_size": batch_size, "num_workers": workers, "collate_fn": padded}
        self.drop_last = drop_last

    def train_dataloader(self) -> Any:
        return DataLoader(Sequences(57, 0), shuffle=True, drop_last=self.drop_last, **self.options)

    def val_dataloader(self) -> Any:
        return [DataLoader(Sequences(length, length), **self.options) for length in (13, 22)]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch | {"x": batch["x"] + 0.01 * torch.randn(batch["x"].shape)}


class Plain(LightningModule):
    """Logs by all ways there are; its loss couples the samples of a batch, and each step changes a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.RReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES))
        self.register_buffer("seen", torch.zeros(CLASSES))
        self.train_acc, self.loss_mean, self.error = MulticlassAccuracy(CLASSES), MeanMetric(), MeanSquaredError()
        both = {"f1": MulticlassF1Score(CLASSES), "acc": MulticlassAccuracy(CLASSES)}
        self.val_metrics = nn.ModuleList([MetricCollection(both, prefix=f"val{loader}/") for loader in range(2)])
        self.auroc = MulticlassAUROC(CLASSES)

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch["x"].mean(dim=1))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        loss = functional.cross_entropy(outputs := self(batch), batch["y"])
        self.seen.lerp_(outputs.detach().mean(dim=0), 0.1)
        coupled = functional.normalize(outputs) @ functional.normalize(outputs).T
        loss = loss + 0.1 * coupled.square().mean() + 0.01 * self.seen.square().sum()
        self.log("train/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("train/own_loss", loss * 1.1, on_step=True, on_epoch=True)
        self.log("train/sum", loss / 3, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("train/largest", loss, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
        self.train_acc(outputs, batch["y"])
        self.log("train/acc", self.train_acc, on_step=True, on_epoch=True)
        self.loss_mean.update(loss.detach() / 7, weight=len(batch["y"]))
        return {"loss": loss, "more": outputs.detach()}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norm = torch.stack([p.grad.norm() for p in self.parameters() if p.grad is not None]).norm()
        self.log("train/norm", norm, on_step=True, on_epoch=True)

    def configure_gradient_clipping(self, optimizer: Any, *clip: Any, **clips: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.7, gradient_clip_algorithm="norm")

    def on_train_epoch_end(self) -> None:
        self.log("train/loss_mean", self.loss_mean.compute())
        self.loss_mean.reset()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        outputs = self(batch) + 0.1 * torch.randn(len(batch["y"]), CLASSES)
        self.log("val/loss", functional.cross_entropy(outputs, batch["y"]), sync_dist=True)
        self.log("val/loss_alone", functional.cross_entropy(outputs, batch["y"]), add_dataloader_idx=True)
        metrics: Any = self.val_metrics[dataloader_idx]
        metrics.update(outputs, batch["y"])
        self.log_dict(metrics, add_dataloader_idx=False)
        self.error.update(outputs.softmax(1)[:, 0].contiguous(), batch["x"].mean(dim=(1, 2)))
        self.auroc.update(outputs, batch["y"])

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"val/error": self.error.compute(), "val/auroc": self.auroc.compute()})
        self.error.reset()
        self.auroc.reset()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/error"}}


class OwnLoaders(LightningModule):
    """Two training loaders of its own, a closure that is computed several times."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()))
        draws = torch.Generator().manual_seed(0)
        self.data = [TensorDataset(torch.randn(length, 4, generator=draws)) for length in (33, 33)]

    def train_dataloader(self) -> Any:
        return {name: DataLoader(data, 4, shuffle=True) for name, data in zip("ab", self.data, strict=True)}

    def val_dataloader(self) -> Any:
        return DataLoader(self.data[0], 4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        (a,), (b,) = batch["a"], batch["b"]
        self.seen = self.seen + a.mean()
        loss = (self.net(a) - b.sum(1, keepdim=True)).square().mean()
        self.log("train/loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class LeavesOut(OwnLoaders):
    """Steps that return None: of one batch all of them, of others those of some workers."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 1 or batch["a"][0][0, 0] > 0.8 else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class ByHand(OwnLoaders):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Gathers(OwnLoaders):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.all_gather(batch["a"][0]).mean() + self.net(batch["a"][0]).mean()
