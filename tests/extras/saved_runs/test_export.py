"""Exported weights are read by people who have neither Lightning nor Hydra nor this package."""

import json
import subprocess
import sys
import weakref
from pathlib import Path

import export
import pytest
import torch
from safetensors.torch import load_file, save_file

from lockstep.errors import ConfigError

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


def test_the_file_is_the_library_s_and_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    tensors = {
        "bytes": torch.arange(5, dtype=torch.uint8),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "half": torch.arange(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    held: list[weakref.ref[torch.Tensor]] = []

    def read(_: str, tensor: torch.Tensor) -> torch.Tensor:
        assert not [one for one in held if one() is not None]
        copy = tensor.clone()
        held.append(weakref.ref(copy))
        return copy

    export.write(tensors, tmp_path / "own.safetensors", {"source": "it"}, read)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs.safetensors")
    own, expected = (load_file(tmp_path / f"{name}.safetensors") for name in ("own", "theirs"))
    assert own.keys() == expected.keys() == tensors.keys()
    assert all(own[name].dtype == expected[name].dtype and torch.equal(own[name], expected[name]) for name in own)
    data = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("own", "theirs")]
    assert len({content[8 + int.from_bytes(content[:8], "little") :] for content in data}) == 1


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["export.py", str(tmp_path), "--checkpoint", "last"])
    with pytest.raises(ConfigError, match="has no checkpoint last in"):
        export.main()
