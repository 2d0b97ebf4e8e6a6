"""Corrections of low rank: nothing at the start, little to train, and the same net when they are merged."""

import copy
import json
import sys
from pathlib import Path

import export
import pytest
import torch
from in_process import trained
from safetensors import safe_open

from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.nets import MLP
from lockstep.nets.lora import lora


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


SMALL = (
    "model=mlp",
    "model.net.hidden=[8]",
    "datamodule.standardize=true",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
)


def test_corrections_are_trained_built_again_and_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "plain", *SMALL)
    before = load_model(tmp_path / "plain" / "checkpoints" / "last.ckpt")
    lora = ("model/adapt=lora", "model.adapt.rank=2", "init_without=lora_")
    trained(tmp_path / "run", *SMALL, *lora, f"init_from={tmp_path}/plain/checkpoints/last.ckpt")
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
