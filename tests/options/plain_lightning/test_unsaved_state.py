"""State that changes in training and that no checkpoint holds is named."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from plain_lightning import LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import Tensor, nn

LINE = "change in training and are not in checkpoints: a resumed run begins with them anew"


class Forgets(LitClassifier):
    """A buffer that is not persistent, a schedule by hand, a network in a list, a memory and numbers."""

    def __init__(self, hidden: int = 16, lr: float = 0.05) -> None:
        super().__init__(hidden, lr)
        self.register_buffer("centre", torch.zeros(10), persistent=False)
        self.hidden_layers, self.memory, self.count, self.state = [nn.Linear(10, 10)], [], 0, torch.zeros(2)
        self.constant, self.outputs, self.saved = torch.ones(2), [], 0

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        self.by_hand = {"decay": torch.optim.lr_scheduler.StepLR(optimizer, 3)}
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.centre = 0.9 * self.centre + 0.1 * self(batch[0]).mean(0)
            self.hidden_layers[0].weight += 0.1 * self.centre
        if self.global_step:
            self.by_hand["decay"].step()
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


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def lines_of_rank(rank: int, world_size: int, folder: Path) -> list[str]:
    become_rank(rank, world_size)
    logging.getLogger("lockstep").addHandler(said := Said())
    options = ("guards.checkpoint.every_n_steps=null", f"trainer.devices={world_size}")
    fitted(folder / "run", "model._target_=test_unsaved_state.Forgets", *options)
    return [line for line in said.lines if LINE in line]


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_changes_is_named_once(size: int, tmp_path: Path) -> None:
    names = "by_hand, centre, count, hidden_layers, memory, state"
    line = f"{names} {LINE}; make tensors persistent buffers, or save them in on_save_checkpoint"
    assert in_ranks(size, partial(lines_of_rank, folder=tmp_path), tmp_path)[0] == [line]
