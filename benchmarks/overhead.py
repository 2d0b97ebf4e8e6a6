"""What the template costs: training steps per second against a bare PyTorch loop, in the same process and run.

    python benchmarks/overhead.py [--steps 2000] > benchmarks/overhead.md

Both train the DDP guides' SimpleNet (784-256-10) with Adam on the same batches of random 28x28 uint8 images in memory,
on one thread of the CPU. Each is measured `--repeats` times in turn; the table has the mean and the spread.
"""

import argparse
import logging
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    variants: dict[str, Callable[[int], float]] = {
        "bare PyTorch loop": bare,
        "Lockstep, no callbacks, no logger": lambda steps: lockstep(steps, bar=False, without=("callbacks", "logger")),
        "Lockstep, default callbacks and TensorBoard": lambda steps: lockstep(steps, bar=False),
        "the same with a progress bar on a terminal": lambda steps: lockstep(steps, bar=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant(200)  # warm-up
    for _ in range(arguments.repeats):
        for name, variant in variants.items():
            rates[name].append(arguments.steps / variant(arguments.steps))
    floor = statistics.mean(rates["bare PyTorch loop"])
    print(f"`python benchmarks/overhead.py --steps {arguments.steps} --repeats {arguments.repeats}`; torch {torch.__version__}, ")
    print(f"Python {platform.python_version()}, {platform.machine()}, one thread of {processor()}.\n")
    print("| | steps/s | spread | of the bare loop |\n|---|---|---|---|")
    for name, measured in rates.items():
        mean = statistics.mean(measured)
        print(f"| {name} | {mean:.0f} | {statistics.stdev(measured):.0f} | {mean / floor:.2f} |")


def config(steps: int) -> Any:
    data = ("datamodule=synthetic_images", "datamodule.shape=[1,28,28]", f"datamodule.length={steps * BATCH}")
    sizes = ("datamodule.val_length=1", "trainer.limit_val_batches=0", "trainer.max_epochs=1", f"datamodule.batch_size={BATCH}")
    fixed = (
        "trainer=cpu",
        "model=mlp",
        "model/optimizer=adam",
        f"run_dir={tempfile.mkdtemp()}",
        "callbacks.best_checkpoint=null",
    )
    return compose(*data, *sizes, *fixed)


def lockstep(steps: int, bar: bool, without: Sequence[str] = ()) -> float:
    """Seconds from the start of training to its end; `without` names groups to leave empty."""
    cfg = config(steps)
    for group in without:
        cfg[group] = {}
    datamodule, model, trainer = build(cfg, Plan.of(cfg))
    stdout, sys.stdout = sys.stdout, Terminal() if bar else sys.stderr
    try:
        for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if type(callback).__name__ == "Progress":
                callback._refresh_rate = cfg.callbacks.progress.refresh_rate if bar else 0
        trainer.fit(model, datamodule)
    finally:
        sys.stdout = stdout
    assert isinstance(model.train_time, float)
    return model.train_time


class Terminal:
    """Takes what a progress bar draws, and says it is a terminal."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def bare(steps: int) -> float:
    """Seconds of the loop of the DDP guides, less DDP, on the same tensors."""
    cfg = config(steps)
    datamodule, model, _ = build(cfg, Plan.of(cfg))
    inputs, targets = datamodule.splits.train.inputs, datamodule.splits.train.targets  # pyright: ignore[reportAttributeAccessIssue]
    net: Any = model.net
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    started = time.perf_counter()
    for ids in torch.randperm(len(inputs)).split(BATCH):
        loss = functional.cross_entropy(net(inputs[ids].float() / 255), targets[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def processor() -> str:
    """The processor's name by /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
