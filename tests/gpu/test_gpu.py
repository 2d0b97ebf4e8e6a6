"""Tests that need a CUDA device: one is enough. `pytest tests/gpu -rs` says what it has skipped, and why.

A training on a GPU is what it is on a CPU: the same weights, resumed to the same bits, and no step waits for the device.
"""

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from commands import ROOT, python, started
from in_process import KeepAll, last, prepared, trained
from lightning import Callback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; `make gpu` shows it to the tests"),
]
IMAGES = ("datamodule=synthetic_images", "datamodule.length=2048", "datamodule.pin_memory=true")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("trainer.precision=bf16-mixed",),
        (*IMAGES, "trainer.precision=16-mixed", "trainer.gradient_clip_val=1.0"),
        (*IMAGES, "trainer.precision=bf16-mixed", "model.compile=true", "model.channels_last=true", "trainer.benchmark=true"),
    ],
    ids=["float32", "bf16", "fp16 clipped", "bf16 compiled channels_last"],
)
def test_a_resnet_learns_on_one_gpu(options: tuple[str, ...], tmp_path: Path) -> None:
    common = ("trainer=gpu", "model=resnet18", "trainer.max_epochs=4", "hydra.run.dir=run")
    python(ROOT / "train.py", *common, *options, cwd=tmp_path, timeout=220, code=0)
    record: dict[str, Any] = json.loads((tmp_path / "run" / "metrics.json").read_text())
    print(options, {name: record[name] for name in ("device_name", "samples_per_second", "device_memory_gib", "metrics")})
    assert record["accelerator"] == "gpu"
    assert record["device_memory_gib"] > 0
    assert record["metrics"]["train/acc"] > 0.6


GPU = ("trainer.accelerator=gpu", "model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}")


@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_one_gpu_gives_what_a_cpu_gives(tmp_path: Path) -> None:
    """In float64, up to rounding: the order, the augmentation and the dropout are counted, not drawn."""
    options = (*GPU[1:], "trainer.precision=64-true")
    on_cpu, _ = trained(tmp_path / "cpu", *options)
    on_gpu, _ = trained(tmp_path / "gpu", *options, GPU[0])
    for name, weight in on_cpu["state_dict"].items():
        torch.testing.assert_close(on_gpu["state_dict"][name].cpu(), weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("model", [GPU[1:], ("model=cnn", "model.net.width=4")], ids=["mlp", "cnn"])
def test_continuing_from_any_step_changes_no_bit(model: tuple[str, ...], precision: str, tmp_path: Path) -> None:
    options = (*model, GPU[0], f"trainer.precision={precision}", "trainer.deterministic=true", "trainer.max_epochs=2")
    kept = tmp_path / "run" / "kept"
    kept.mkdir(parents=True)
    whole, _ = trained(tmp_path / "run", *options, extra=[KeepAll(kept)])
    steps = sorted(kept.iterdir(), key=lambda path: int(path.stem))
    assert len(steps) >= 6
    for path in steps[::2]:
        again, _ = trained(tmp_path / "run", *options, ckpt_path=path)
        assert not differences(whole, again), path.name


class Strict(Callback):
    """From the end of the `first` step to the end of the `last`, whatever waits for the device is an error."""

    def __init__(self, first: int, last: int) -> None:
        self.modes = {first: "error", last: "default"}

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if (mode := self.modes.pop(trainer.global_step, None)) is not None:
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("options", [(), ("trainer.precision=bf16-mixed", "trainer.gradient_clip_val=1.0")])
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18"])
def test_a_step_waits_for_nothing(model: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Between the steps that ask: guards at multiples of ten, logs at multiples of 50."""
    every = ("trainer.log_every_n_steps=50", "guards.checkpoint.every_n_steps=null")
    data = ("datamodule.batch_size=32", "datamodule.pin_memory=true", "trainer.max_epochs=1", "trainer.max_steps=25")
    datamodule, module, trainer = prepared(tmp_path, GPU[0], f"model={model}", *every, *data, *options)
    strict = Strict(11, 19)
    trainer.callbacks.append(strict)  # after all others
    try:
        trainer.fit(module, datamodule)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not strict.modes


def test_a_trace_has_the_kernels(tmp_path: Path) -> None:
    options = ("profiler=pytorch", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=2")
    datamodule, model, trainer = prepared(tmp_path, *GPU, *options)
    trainer.fit(model, datamodule)
    with gzip.open(tmp_path / "profile" / "rank0.pt.trace.json.gz") as file:
        kinds = {event.get("cat") for event in json.load(file)["traceEvents"]}
    assert {"kernel", "cpu_op", "user_annotation"} <= kinds


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices: NCCL refuses two ranks on one")
@pytest.mark.parametrize("model", [("model=mlp", "model.net.dropout=0.2"), ("model=cnn",)], ids=["mlp", "cnn"])
def test_two_gpus_give_what_one_gives(model: tuple[str, ...], tmp_path: Path) -> None:
    command = (ROOT / "scripts" / "parity.py", "trainer=gpu", "trainer.devices=2", "parity.steps=10", *model)
    python(*command, cwd=tmp_path, timeout=220, code=0)


# Two processes on one GPU, as two nodes of one device each; they exchange by gloo, for NCCL refuses two ranks on one device.
TRAINING = ("trainer=gpu", "trainer.max_epochs=2", "datamodule.drop_last=false", "test=false", "hydra.run.dir=run")


def on_one(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    python(ROOT / "train.py", *TRAINING, *overrides, cwd=folder, code=0)
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
        python(*command, cwd=folder, **first, code=0)
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
