"""State that Lightning's checkpoints do not hold: kept where it can be seen, and named elsewhere."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_lightning import DigitsData, LitClassifier
from test_plain_lightning import GOES_ON, fitted
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

LINE = "change in training and are not in checkpoints: a resumed run begins with them anew"


class Keeps(LitClassifier):
    """A buffer that is not persistent, a layer with one, a schedule and a raw optimizer by hand, a network in a list."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.register_buffer("centre", torch.zeros(10), persistent=False)
        self.constant, self.last_used = 3, [torch.ones(1)]
        self.hidden_layers, self.own = [nn.Linear(10, 10)], nn.Module()
        self.own.register_buffer("count", torch.zeros(()), persistent=False)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        self.by_hand = {"decay": torch.optim.lr_scheduler.StepLR(optimizer, 3)}
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.centre = 0.9 * self.centre + 0.1 * self(batch[0]).mean(0)
            self.hidden_layers[0].weight += 0.1 * self.centre
        self.own.count += 1  # pyright: ignore
        if self.global_step:
            self.by_hand["decay"].step()
        return super().training_step(batch, batch_idx) + self.hidden_layers[0](self.centre).sum() * self.own.count


class Forgets(LitClassifier):
    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.memory, self.count, self.state = [], 0, torch.zeros(2)
        self.constant, self.outputs, self.saved = torch.ones(2), [], 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.memory.append(batch[0][:2])
        self.outputs.append(batch_idx)
        self.count += 1
        self.saved += 1
        self.state += 1
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.outputs.clear()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["n"] = self.saved


class GoesOn(IterableDataset[Any]):
    """Begins an epoch where the one before has ended."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(200):
            self.place += 1
            yield torch.full((64,), self.place / 1e4), self.place % 10


class StreamedDigits(DigitsData):
    def train_dataloader(self) -> Any:
        return DataLoader(GoesOn(), 100)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if LINE in message]


@pytest.mark.filterwarnings(GOES_ON)
@pytest.mark.parametrize("batches", [14, 20], ids=["from the end of an epoch", "from within one"])
def test_buffers_and_what_has_a_state_are_kept(batches: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = ("model._target_=test_kept_state.Keeps",)
    whole = fitted(tmp_path / "whole", *own, keep=tmp_path).lightning_module
    again = fitted(tmp_path / "again", *own, ckpt_path=tmp_path / f"{batches}.ckpt").lightning_module
    assert torch.equal(again.centre, whole.centre)
    assert torch.equal(again.hidden_layers[0].weight, whole.hidden_layers[0].weight)
    assert again.own.count == whole.own.count == 28
    assert again.by_hand["decay"].state_dict() == whole.by_hand["decay"].state_dict()
    assert all(map(torch.equal, again.parameters(), whole.parameters()))
    assert said(caplog) == []


def test_attributes_that_change_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fitted(tmp_path, "model._target_=test_kept_state.Forgets", "guards.checkpoint.every_n_steps=null")
    (line,) = said(caplog)
    assert line == f"count, memory, state {LINE}; make tensors buffers, or save them in on_save_checkpoint"


def test_a_stream_that_goes_on_over_epochs_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = ("model._target_=test_plain_lightning.AtOneRate", "datamodule._target_=test_kept_state.StreamedDigits")
    with caplog.at_level(logging.WARNING):
        fitted(tmp_path, *own)
    assert [line.partition(" change")[0] for line in said(caplog)] == ["the place in GoesOn"]
