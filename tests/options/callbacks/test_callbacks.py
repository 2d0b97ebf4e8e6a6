"""Callbacks that change what is trained: averages of the weights, early stopping, freezing, and corrections of low rank."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import export
import pytest
import torch
from bitwise import differences
from in_process import KeepAll, last, prepared, save_config, trained
from lightning import Callback, LightningModule, Trainer
from plain_lightning import LitClassifier
from safetensors import safe_open
from test_plain_lightning import fitted

from lockstep.checkpointing import read_checkpoint
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.nets import MLP
from lockstep.nets.lora import lora
from lockstep.runs.results import ended_by

OPTIONS = ("callbacks=ema", "callbacks.ema.decay=0.8", "model=cnn", "model.net.width=8", "trainer.max_epochs=2")


def test_the_average_is_what_is_trained_for(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, *OPTIONS, "guards.checkpoint.every_n_steps=null")
    trainer.fit(model, datamodule)
    saved = last(tmp_path)
    name = next(name for name, _ in model.named_parameters())
    assert not torch.equal(saved["state_dict"][name], saved["current_model_state"][name])
    assert torch.equal(model.state_dict()[name], saved["state_dict"][name])  # the model is the average now
    assert_tested_by_the_best(tmp_path, model, datamodule, trainer)


def assert_tested_by_the_best(folder: Path, model: Any, datamodule: Any, trainer: Any) -> None:
    """Assert that best.ckpt holds what was validated, and what the trainer tests that has the callback."""
    path = folder / "checkpoints" / "best.ckpt"
    data, again, evaluator = prepared(folder / "again", *OPTIONS[2:], f"init_from={path}")
    evaluator.validate(again, data, verbose=False)
    best = read_checkpoint("best", path)["metrics"]
    assert {name: evaluator.callback_metrics[name] for name in ("val/loss", "val/acc")}.items() <= best.items()
    trainer.test(model, datamodule, ckpt_path=path, verbose=False)
    evaluator.test(again, data, verbose=False)
    assert trainer.callback_metrics["test/loss"] == evaluator.callback_metrics["test/loss"]


def test_lightning_s_own_averaging_is_tested_by_the_weights_that_were_validated(tmp_path: Path) -> None:
    """Lightning puts those that are trained in their place, where the trainer that tests has trained."""
    own = "+callbacks.average={_target_: lightning.pytorch.callbacks.EMAWeightAveraging, decay: 0.8}"
    datamodule, model, trainer = prepared(tmp_path, own, *OPTIONS[2:])
    trainer.fit(model, datamodule)
    assert_tested_by_the_best(tmp_path, model, datamodule, trainer)


class StopBeforeTheEnd(Callback):
    """Break off where kill -9 might: training is over, nothing has been saved of its end."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        raise ZeroDivisionError


def test_a_run_that_had_stopped_early_does_not_train_on(tmp_path: Path) -> None:
    """A metric that gets no better by 1 stops it after the third epoch, patience 2."""
    options = ("trainer.max_epochs=9", "callbacks=early_stopping", "callbacks.early_stopping.patience=2")
    options += ("callbacks.early_stopping.min_delta=1.0", "guards.checkpoint.every_n_steps=null")
    whole, trainer = trained(tmp_path / "whole", *options)
    assert (trainer.current_epoch, trainer.global_step) == (3, 12)
    run = tmp_path / "run"
    datamodule, model, broken = prepared(run, *options, extra=[StopBeforeTheEnd()])
    with pytest.raises(ZeroDivisionError):
        broken.fit(model, datamodule)
    assert last(run)["global_step"] == 8  # of the end of the second epoch: the third is trained again
    again, _ = trained(run, *options, ckpt_path=run / "checkpoints" / "last.ckpt")
    assert not differences(whole["state_dict"], again["state_dict"])
    _, trainer = trained(run, *options, ckpt_path=run / "checkpoints" / "last.ckpt")  # it is over
    assert trainer.global_step == 12
    assert not differences(again["state_dict"], last(run)["state_dict"])


class Recovers(LitClassifier):
    """Its metric gets worse, and then better than ever."""

    def on_validation_epoch_end(self) -> None:
        self.log("val_loss", [1.0, 2.0, 2.0, 0.5, 0.4, 0.3][self.current_epoch])


RECOVERS = ("model._target_=test_callbacks.Recovers", "trainer.limit_train_batches=1", "trainer.max_epochs=6")


def test_a_metric_that_recovers_before_min_epochs_does_not_stop_the_run(tmp_path: Path) -> None:
    """It asks to stop in the third epoch, which min_epochs puts off."""
    settings = "{_target_: lockstep.callbacks.early_stopping.EarlyStopping, monitor: val_loss, patience: 2}"
    trainer = fitted(tmp_path, *RECOVERS, f"+callbacks.stop={settings}", "+trainer.min_epochs=5")
    assert (trainer.current_epoch, ended_by(trainer)) == (6, "trainer.max_epochs=6")


STOP = "+callbacks.stop={_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val_loss, patience: "


def test_lightning_s_own_takes_the_patience_that_a_resumption_is_given(tmp_path: Path) -> None:
    assert fitted(tmp_path, *RECOVERS, STOP + "2}").current_epoch == 3
    assert fitted(tmp_path, *RECOVERS, STOP + "9}", ckpt_path=tmp_path / "checkpoints" / "last.ckpt").current_epoch == 6


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


def test_at_first_it_is_the_net_and_trained_is_the_correction_alone() -> None:
    plain = MLP((4,), 3, [8]).double()  # whose layers 1 and 4 are linear
    adapted = lora(copy.deepcopy(plain), rank=2, alpha=4.0)
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(adapted(x), plain(x))
    assert {name for name, p in adapted.named_parameters() if p.requires_grad} == {
        *("layers.1.lora_down", "layers.1.lora_up", "layers.4.lora_down", "layers.4.lora_up")
    }
    assert plain.state_dict().keys() < adapted.state_dict().keys()  # a checkpoint of the net fits
    with pytest.raises(ConfigError, match=r"^model\.adapt\.match=head: found in no name of .* part of layers\.1, layers\.4$"):
        lora(plain, match="head")


SMALL = ("model=mlp", "model.net.hidden=[8]", "datamodule.standardize=true")
SMALL += ("trainer.max_epochs=1", "trainer.limit_train_batches=2")


def test_corrections_are_trained_built_again_and_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "plain", *SMALL)
    save_config(tmp_path / "plain", *SMALL)
    before = load_model(tmp_path / "plain" / "checkpoints" / "last.ckpt")
    lora = ("model/adapt=lora", "model.adapt.rank=2", "init_without=lora_")
    trained(tmp_path / "run", *SMALL, *lora, f"init_from={tmp_path}/plain/checkpoints/last.ckpt")
    save_config(tmp_path / "run", *SMALL, *lora)
    adapted = load_model(tmp_path / "run" / "checkpoints" / "last.ckpt")
    images = torch.rand(5, 1, 8, 8)
    assert not torch.equal(adapted.predict(images), before.predict(images))
    assert torch.equal(adapted.net.layers[1].weight, before.net.layers[1].weight)
    monkeypatch.setattr(sys, "argv", ["export.py", str(tmp_path / "run"), "--checkpoint", "last"])
    export.main()
    with safe_open(tmp_path / "run" / "export" / "last.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file has no __iter__)
        assert "adapt" not in json.loads(file.metadata()["model_config"])["model"]
    before.load_state_dict(weights)
    assert torch.allclose(before.predict(images), adapted.predict(images), atol=1e-6)
