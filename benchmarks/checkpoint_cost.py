"""What safety costs: the stall of training per checkpoint, and the time per step of all that watches over a run.

    python benchmarks/checkpoint_cost.py [--repeats 5] > benchmarks/checkpoint_cost.md

The stall is the time the training thread spends in a save of a model of 100 MB (SGD without momentum: nothing but the
weights), written at once, and in the background. The cost per step is that of two processes over gloo on the smallest of
models, where every microsecond shows: with preemption, the look at the loss, the watchdog and the checkpoint callback;
without them; and without them but with the flag that Lightning broadcasts before every batch.
"""

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

ROOT = Path(__file__).resolve().parents[1]
WATCHERS = ("preemption", "nonfinite", "watchdog", "checkpoint")
STEPS = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    logging.disable(logging.INFO)
    print(f"`python benchmarks/checkpoint_cost.py --repeats {repeats}`; torch {torch.__version__}, ")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores.\n")
    print("| a save of 100 MB | training stands still | spread |\n|---|---|---|")
    for name, in_background in (("at once", False), ("in the background", True)):
        times = stalls(repeats, in_background)
        print(f"| {name} | {statistics.mean(times):.3f} s | {statistics.stdev(times):.3f} s |")
    without = [f"guards.{name}=null" for name in WATCHERS]
    variants = {
        "none of it": without,
        "all of it": [],
        "none of it, and Lightning's flag before every batch": [
            *without,
            "+callbacks.own={_target_:checkpoint_cost.LightningsFlag}",
        ],
    }
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, overrides in variants.items():
            rates[name].append(steps_per_second(overrides))
    floor = statistics.mean(rates["none of it"])
    print("\n| two processes | steps/s | spread | of none of it |\n|---|---|---|---|")
    for name, measured in rates.items():
        mean = statistics.mean(measured)
        print(f"| {name} | {mean:.0f} | {statistics.stdev(measured):.0f} | {mean / floor:.2f} |")


def stalls(saves: int, in_background: bool) -> list[float]:
    """Seconds that training stands still per save, of `saves` saves with steps between them; the first is not counted."""
    timer = Timed()
    data = ("datamodule=synthetic_images", "datamodule.shape=[1,28,28]", "datamodule.length=4000", "datamodule.val_length=1")
    sizes = ("model=mlp", "model.net.hidden=[4800,4600]", "model/optimizer=sgd", "model.optimizer.momentum=0.0", "logger=csv")
    often = ("guards.checkpoint.every_n_steps=10", "callbacks.best_checkpoint=null", f"trainer.max_steps={10 * saves + 15}")
    with tempfile.TemporaryDirectory() as folder:
        how = (f"trainer.checkpoint_io.async={in_background}".lower(), "trainer.enable_progress_bar=false")
        cfg = compose("trainer=cpu", *data, *sizes, *often, *how, f"run_dir={folder}", "callbacks.progress=null")
        datamodule, model, trainer = build(cfg, Plan.of(cfg))
        io: Any = trainer.strategy.checkpoint_io
        io.save_checkpoint = timer(io.save_checkpoint)
        trainer.fit(model, datamodule)
    return timer.seconds[1 : saves + 1]


class Timed:
    """Wraps a function, and keeps how long each call took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, function: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> None:
            began = time.perf_counter()
            function(*arguments, **named)
            self.seconds.append(time.perf_counter() - began)

        return timed


class LightningsFlag(Callback):
    """Gives back to Lightning what lockstep.trainer.lightning_internals has taken out."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor


def steps_per_second(overrides: list[str]) -> float:
    """Of a run of two processes, from its record."""
    data = (
        "datamodule=synthetic_images",
        "datamodule.shape=[1,8,8]",
        f"datamodule.length={STEPS * 128}",
        "datamodule.val_length=1",
    )
    short = ("model=mlp", "trainer.devices=2", "trainer.max_epochs=1", "trainer.limit_val_batches=0", "test=false", "logger=csv")
    free = ("callbacks.best_checkpoint=null", "callbacks.pictures=null", "optimized_metric=train/loss", "optimized_mode=min")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "train.py"),
                "trainer=cpu",
                *data,
                *short,
                *free,
                f"hydra.run.dir={folder}/run",
                *overrides,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src")])},
            timeout=600,
        )
        record = json.loads((Path(folder) / "run" / "metrics.json").read_text())
    return record["steps"] / record["train_time"]


if __name__ == "__main__":
    main()
