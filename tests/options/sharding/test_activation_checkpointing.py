"""Activations that are computed again: the same training to the bit."""

from pathlib import Path
from typing import Any

import pytest
from bitwise import differences
from in_process import prepared, trained
from lightning import Callback, LightningModule, Trainer

from lockstep.errors import ConfigError

MLP = (
    "callbacks=activation_checkpointing",
    "model.net.hidden=[16]",
    "model.net.dropout=0.5",
    "trainer.max_epochs=1",
)
KEY = "callbacks.activation_checkpointing.match"


class Counts(Callback):
    """How often the second linear layer has begun to compute in training, and in how many batches."""

    def __init__(self) -> None:
        self.batches = self.times = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        layer: Any = pl_module.get_submodule("net.layers.4")
        layer.register_forward_pre_hook(self._count)  # the second time torch stops within it

    def _count(self, layer: Any, *_: Any) -> None:
        self.times += layer.training

    def on_train_batch_start(self, *_: Any) -> None:
        self.batches += 1


def test_blocks_compute_twice_and_nothing_else_changes(tmp_path: Path) -> None:
    counts = Counts()
    again, trainer = trained(tmp_path / "again", *MLP, rf"{KEY}='layers(\.\d+)?$'", extra=[counts])
    assert counts.times == 2 * counts.batches > 0  # within a block it is no block of its own: not thrice
    plain, _ = trained(tmp_path / "plain", *MLP, "callbacks.activation_checkpointing=null")
    assert differences(plain | {"callbacks": None}, again | {"callbacks": None}) == []
    assert trainer.state.finished


@pytest.mark.parametrize(
    ("model", "match", "said"),
    [
        ("mlp", "tail", "found in no module's name; use part of a name such as net, net.layers"),
        ("cnn", "net", "net has a BatchNorm, which would count each batch twice; use a pattern without it"),
    ],
)
def test_what_can_not_be_computed_again_is_refused(tmp_path: Path, model: str, match: str, said: str) -> None:
    options = ("callbacks=activation_checkpointing", f"model={model}", f"{KEY}={match}")
    datamodule, net, trainer = prepared(tmp_path, *options)
    with pytest.raises(ConfigError) as refused:
        trainer.fit(net, datamodule)
    assert str(refused.value).startswith(f"{KEY}={match}: {said}")
