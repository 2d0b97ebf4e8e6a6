"""Steps of several batches, the last of an epoch of fewer: gradients are means over the samples of the step."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from lightning import LightningDataModule, LightningModule
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lockstep.plain_lightning.streams import Shard

NUMBERS = torch.arange(22.0).unsqueeze(1)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from NUMBERS


class Data(LightningDataModule):
    def __init__(self, batch_size: int, kind: str) -> None:
        super().__init__()
        self.batch_size, self.kind = batch_size, kind

    def train_dataloader(self) -> Any:
        data: Any = Shard(Stream()) if self.kind == "stream" else TensorDataset(NUMBERS)
        return DataLoader(data, self.batch_size)


class Mean(LightningModule):
    """Its gradient is the mean of the numbers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.gradients = nn.Parameter(torch.ones(())), []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.factor * torch.as_tensor(batch[0] if isinstance(batch, list) else batch)).mean()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(round(float(self.factor.grad), 4))  # pyright: ignore[reportArgumentType]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def gradients(folder: Path, kind: str, batch_size: int, *overrides: str) -> list[float]:
    own = ("~model.hidden", "~model.lr", "optimized_metric=null", "model._target_=test_accumulation.Mean")
    own += ("datamodule._target_=test_accumulation.Data", f"+datamodule.kind={kind}", f"datamodule.batch_size={batch_size}")
    trainer = fitted(folder, *own, "trainer.accumulate_grad_batches=4", "trainer.max_epochs=1", *overrides)
    return trainer.lightning_module.gradients


def of_rank(rank: int, world_size: int, folder: Path, kind: str) -> list[float]:
    become_rank(rank, world_size)
    return gradients(folder / "run", kind, 2, f"trainer.devices={world_size}")


# of 0, ..., 15; then of 16, ..., 21, which a stream has in two batches that count alike
@pytest.mark.parametrize(("kind", "expected"), [("data", [7.5, 18.5]), ("stream", [7.5, (17.5 + 20.5) / 2])])
def test_the_last_step_of_an_epoch_is_the_mean_of_what_is_left(kind: str, expected: list[float], tmp_path: Path) -> None:
    assert gradients(tmp_path / "one", kind, 4) == expected
    assert in_ranks(2, partial(of_rank, folder=tmp_path, kind=kind), tmp_path) == [expected] * 2
