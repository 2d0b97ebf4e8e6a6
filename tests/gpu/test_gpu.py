"""What needs a CUDA device: one is enough. `pytest tests/gpu -rs` says what it has skipped, and why."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from commands import ROOT, python
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; `make gpu` shows it to the tests"),
]
DATA = {
    "digits": ("datamodule=digits",),
    "synthetic_images": ("datamodule=synthetic_images", "datamodule.length=2048", "datamodule.pin_memory=true"),
}


@pytest.mark.parametrize("data", ["digits", "synthetic_images"])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("trainer.precision=bf16-mixed",),
        ("trainer.precision=16-mixed", "trainer.gradient_clip_val=1.0"),
        ("trainer.precision=bf16-mixed", "model.compile=true", "model.channels_last=true", "trainer.benchmark=true"),
        ("model.compile=true", "model.compile_mode=reduce-overhead"),
    ],
    ids=["float32", "bf16", "fp16 clipped", "bf16 compiled channels_last", "CUDA graphs"],
)
def test_a_resnet_learns_on_one_gpu(data: str, options: tuple[str, ...], tmp_path: Path) -> None:
    common = ("trainer=gpu", "model=resnet18", "trainer.max_epochs=4", "hydra.run.dir=run", *DATA[data])
    done = python(ROOT / "train.py", *common, *options, cwd=tmp_path, timeout=220)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads((tmp_path / "run" / "metrics.json").read_text())
    print(options, data, {name: record[name] for name in ("device_name", "samples_per_second", "device_memory_gib", "metrics")})
    assert record["accelerator"] == "gpu"
    assert record["device_memory_gib"] > 0
    assert record["metrics"]["train/acc"] > 0.6


def test_synchronised_batchnorm_over_nccl_with_a_world_of_one() -> None:
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    try:
        x = torch.randn(16, 8, 4, 4, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        plain, synced = nn.BatchNorm2d(8).cuda(), nn.SyncBatchNorm(8).cuda()
        torch.testing.assert_close(synced(x), plain(x))
        torch.testing.assert_close(synced.running_var, plain.running_var)
    finally:
        dist.destroy_process_group()
