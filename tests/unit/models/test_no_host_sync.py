"""A training step reads no tensor's value: on a GPU the host would wait for the device there.

Seen on the CPU, where reading is the same operation (`.item()`, `float`, `int`, `if tensor`); tests/gpu/test_gpu.py asks
the device itself.
"""

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import prepared
from lightning import Callback
from torch.utils._python_dispatch import TorchDispatchMode

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class Reads(TorchDispatchMode):
    """Where in our own code, or what it calls, a value is read."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self.stacks.append("".join(traceback.format_stack(limit=8)))
        return func(*args, **(kwargs or {}))


class Watch(Callback):
    """From the end of the first batch to the end of the third."""

    def __init__(self) -> None:
        self.reads, self.batches = Reads(), 0

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.batches += 1
        if self.batches == 1:
            self.reads.__enter__()
        elif self.batches == 3:
            self.reads.__exit__(None, None, None)


@pytest.mark.parametrize(
    "options",
    [
        ("model.net.dropout=0.3", "datamodule.augment={crop: 1, flip: true}", "trainer.gradient_clip_val=1.0"),
        ("model=cnn", "model.net.width=4", "trainer.precision=bf16-mixed", "model/lr_scheduler=one_cycle"),
        (
            *("model=linear", "datamodule=random_regression", "trainer.accumulate_grad_batches=2"),
            *("optimized_metric=val/loss", "optimized_mode=min"),
        ),
    ],
    ids=["mlp", "cnn", "linear"],
)
def test_a_step_reads_no_value(options: tuple[str, ...], tmp_path: Path) -> None:
    """Without the look at the loss, which on CPUs is at every step, and logs."""
    apart = ("++guards.nonfinite=null", "trainer.log_every_n_steps=50", "guards.checkpoint.every_n_steps=null")
    datamodule, model, trainer = prepared(tmp_path, "trainer.limit_train_batches=4", "trainer.max_epochs=1", *options, *apart)
    watch = Watch()
    trainer.callbacks.append(watch)
    trainer.fit(model, datamodule)
    assert watch.batches == 4
    assert watch.reads.stacks == []


def test_what_reads_is_seen() -> None:
    with Reads() as reads:
        if torch.ones(()) > 0:
            float(torch.ones(()))
    assert len(reads.stacks) == 2
