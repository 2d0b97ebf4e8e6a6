"""Low-rank corrections of a run: they are trained from a checkpoint that has none, built again, and merged when exported."""

import json
import sys
from pathlib import Path

import export
import pytest
import torch
from in_process import trained
from safetensors import safe_open

from lockstep.models.from_checkpoint import load_model

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
