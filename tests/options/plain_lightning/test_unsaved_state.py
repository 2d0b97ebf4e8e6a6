"""State that changes in training and that no checkpoint holds is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_lightning import LitClassifier
from test_plain_lightning import fitted
from torch import Tensor, nn

LINE = "Training changes what checkpoints do not have, so that a resumed run begins with its initial value"


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


def test_what_changes_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fitted(tmp_path, "model._target_=test_unsaved_state.Forgets", "guards.checkpoint.every_n_steps=null")
    names = "by_hand, centre, count, hidden_layers, memory, state"
    line = f"{LINE}: {names}; make tensors persistent buffers, or save them in on_save_checkpoint"
    assert [message for message in caplog.messages if LINE in message] == [line]
