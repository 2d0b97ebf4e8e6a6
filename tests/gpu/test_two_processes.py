"""Two processes on one GPU, as two nodes of one device each, give what one gives. They exchange by gloo, for NCCL refuses two
ranks on one device."""

import json
import socket
from pathlib import Path

import pytest
import torch
from commands import ROOT, python, started
from in_process import last

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; `make gpu` shows it to the tests"),
]
TRAINING = ("trainer=gpu", "trainer.max_epochs=2", "datamodule.drop_last=false", "test=false", "hydra.run.dir=run")


def on_one(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    done = python(ROOT / "train.py", *TRAINING, *overrides, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def on_two(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = str(holder.getsockname()[1])
    everyone = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, second = (everyone | {"TORCHELASTIC_RUN_ID": "test", "RANK": rank, "GROUP_RANK": rank} for rank in "01")
    nodes = ("trainer.num_nodes=2", "trainer.devices=1", "trainer.strategy.process_group_backend=gloo")
    command = (ROOT / "train.py", *TRAINING, *nodes, *overrides)
    with started(*command, cwd=folder, **second):
        done = python(*command, cwd=folder, **first)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.parametrize("model", [("model=mlp", "model.net.dropout=0.2"), ("model=cnn",)], ids=["mlp", "cnn"])
def test_two_processes_give_the_weights_of_one(model: tuple[str, ...], tmp_path: Path) -> None:
    """In float64, up to rounding; of synchronised BatchNorm, too."""
    options = (*model, "trainer.precision=64-true", "datamodule.global_batch_size=50")
    one, two = last(on_one(tmp_path / "one", *options)), last(on_two(tmp_path / "two", *options))
    for name, weight in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_two_processes_give_the_bits_of_one(model: str, tmp_path: Path) -> None:
    options = (f"model={model}", "trainer.exact=2")
    runs = on_one(tmp_path / "one", *options), on_two(tmp_path / "two", *options)
    one, two = (json.loads((run / "metrics.json").read_text())["exact_hash"] for run in runs)
    assert one == two
