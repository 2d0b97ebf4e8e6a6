"""A run goes on within its epoch: noise by lockstep.noise, random transforms, and a stream."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import last
from plain_lightning import DigitsData, LitClassifier
from sklearn.datasets import load_digits
from test_plain_lightning import GOES_ON, fitted
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lockstep import noise
from lockstep.nets import Dropout


class Noisy(LitClassifier):
    """Draws as it is given a batch, in its step twice, and in a layer."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.layer = Dropout(0.1)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return [x + 0.1 * noise.randn_like(x), y] if self.trainer.training else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return super().training_step([self.layer(noise.dropout(x + 0.1 * noise.rand_like(x), 0.1)), y], batch_idx)


class Moved(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + 0.1 * torch.rand(()), y


class MovedDigits(DigitsData):
    """With a generator of the loader's own, as torch's notes on reproducibility have it."""

    def train_dataloader(self) -> Any:
        loader: Any = super().train_dataloader()
        options: Any = {"num_workers": self.hparams["num_workers"], "generator": torch.Generator().manual_seed(0)}
        return DataLoader(Moved(loader.dataset), loader.batch_size, shuffle=True, **options)


@pytest.mark.filterwarnings(GOES_ON, "ignore:You have overridden `on_after_batch_transfer`")
@pytest.mark.parametrize("workers", [0, 1])
def test_it_is_that_of_the_run_left_alone(workers: int, tmp_path: Path) -> None:
    """It was another for the rest of the epoch: Lightning does not begin it anew."""
    options = ("model._target_=test_noise_resumed.Noisy", "datamodule._target_=test_noise_resumed.MovedDigits")
    options += (f"+datamodule.num_workers={workers}",)
    fitted(tmp_path / "whole", *options, keep=tmp_path)
    fitted(tmp_path / "again", *options, ckpt_path=tmp_path / "20.ckpt")  # of 14 an epoch
    own, other = (last(tmp_path / name)["state_dict"] for name in ("again", "whole"))
    assert all(torch.equal(own[name], tensor) for name, tensor in other.items())


class Counting(DataLoader[Any]):
    """A loader with a state, as torchdata's StatefulDataLoader. Lightning would load it, a batch ahead of training."""

    first, loaded = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["loaded"]

    def __iter__(self) -> Any:
        first, self.first = self.first, 0
        for self.loaded, batch in enumerate(islice(super().__iter__(), first, None), first + 1):
            yield batch


class Images(IterableDataset[Any]):
    def __iter__(self) -> Any:
        images, labels = load_digits(return_X_y=True)
        yield from ((torch.tensor(images[i] / 16, dtype=torch.float32), int(labels[i])) for i in range(700))


class StreamedDigits(DigitsData):
    def train_dataloader(self) -> DataLoader[Any]:
        return Counting(Images(), self.hparams["batch_size"])


def test_a_stream_is_read_again_up_to_the_batch_of_the_checkpoint(tmp_path: Path) -> None:
    data = ("datamodule._target_=test_noise_resumed.StreamedDigits", "guards.checkpoint.every_n_steps=1")
    fitted(tmp_path / "whole", *data, keep=tmp_path)  # seven batches an epoch
    fitted(tmp_path / "run", *data, ckpt_path=tmp_path / "11.ckpt")
    own, other = last(tmp_path / "run"), last(tmp_path / "whole")
    assert own["global_step"] == other["global_step"] == 14
    assert all(torch.equal(own["state_dict"][name], tensor) for name, tensor in other["state_dict"].items())
