"""What is frozen stays, to the bit, until it is its turn."""

from pathlib import Path
from typing import Any

import torch
from in_process import KeepAll, prepared, trained
from lightning import Callback

CNN = ("callbacks=freeze", "model=cnn", "model.net.width=4", "datamodule.standardize=true", "trainer.max_epochs=2")


class Weights(Callback):
    """The state at the end of each epoch."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.states.append({name: tensor.clone() for name, tensor in pl_module.state_dict().items()})


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_a_part_is_frozen_and_another_until_its_epoch_with_their_statistics(tmp_path: Path) -> None:
    """Frozen are the three blocks, the last of them for an epoch."""
    weights = Weights()
    freeze = ("callbacks.freeze.match=net.features", "callbacks.freeze.unfreeze={1: features.2}")
    datamodule, model, trainer = prepared(tmp_path, *CNN, *freeze, extra=[weights])
    start = {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("preprocess")}
    trainer.fit(model, datamodule)
    first, second = weights.states
    assert changed(start, first) == {"net.head.2.weight", "net.head.2.bias"}
    of_block = {name for name in start if name.startswith("net.features.2.")}
    assert changed(first, second) == {"net.head.2.weight", "net.head.2.bias", *of_block}
    assert [p.requires_grad for p in model.net.features[0].parameters()] == [False] * 3


def test_continued_within_the_frozen_epoch_it_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    freeze = (*CNN, "callbacks.freeze.match=features", "callbacks.freeze.unfreeze={1: features.2}")
    whole, _ = trained(tmp_path / "whole", *freeze, extra=[KeepAll(tmp_path)])
    again, _ = trained(tmp_path / "again", *freeze, ckpt_path=tmp_path / "2.ckpt")
    assert changed(whole["state_dict"], again["state_dict"]) == set()
