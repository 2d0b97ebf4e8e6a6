"""Exported weights are read by people who have neither Lightning nor Hydra nor this package."""

import json
import subprocess
import sys
from pathlib import Path

import export
import pytest
import torch

READER = """
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="pt") as file:
    weights = {name: file.get_tensor(name) for name in file.keys()}
    model_config = json.loads(file.metadata()["model_config"])
assert not {"lightning", "hydra", "lockstep"} & set(sys.modules)
print(json.dumps({"weights": {name: tensor.tolist() for name, tensor in weights.items()}, "model_config": model_config}))
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with a best checkpoint, in which two names are one tensor."""
    shared = torch.arange(4.0).view(2, 2)
    state = {"net.a": shared, "net.b": shared, "net.c": shared.t()}
    (tmp_path / "checkpoints").mkdir()
    content = {"state_dict": state, "hyper_parameters": {"spec": {"num_outputs": 2}}, "metrics": {"val/acc": 0.5}}
    torch.save(content, tmp_path / "checkpoints" / "best.ckpt")
    return tmp_path


def test_read_back_without_lightning_and_hydra(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["export.py", str(run_dir)])
    export.main()
    target = run_dir / "export" / "best.safetensors"
    done = subprocess.run([sys.executable, "-c", READER, str(target)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    square = [[0.0, 1.0], [2.0, 3.0]]
    assert read["weights"] == {"net.a": square, "net.b": square, "net.c": [[0.0, 2.0], [1.0, 3.0]]}
    assert read["model_config"] == {"spec": {"num_outputs": 2}}
    assert [path.name for path in target.parent.iterdir()] == ["best.safetensors"]
