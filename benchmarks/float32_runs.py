"""The table of benchmarks/float32_runs.md: how far a run in float32 lies from one on other processes, and from a flipped bit.

    python benchmarks/float32_runs.py [cnn resnet18 gpt]

Each run is one of train.py, on CPUs, from the same seed: on one process, on two at the same global batch, and on one process
where the lowest bit of one weight is flipped before the first step. Given are |a-b| / |a| over all weights, a being
those of one process, after some steps; and after the last one what is measured in validation.
"""

import argparse
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hardware import processor
from lightning import Callback, LightningModule, Trainer

from lockstep.atomic_files import read_json

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("trainer=cpu", "model/lr_scheduler=constant", "logger=csv", "test=false", "trainer.max_epochs=-1")
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", "datamodule=text", "datamodule.context=64")
GPT += ("trainer.limit_val_batches=20", "optimized_metric=val/loss", "optimized_mode=min")
MODELS: dict[
    str, tuple[tuple[str, ...], str, tuple[int, ...]]
] = {  # what is trained, the metric, and after which steps it is looked at
    "cnn": (("model=cnn", "datamodule.global_batch_size=48"), "val/acc", (1, 10, 50, 150)),
    "resnet18": (("model=resnet18", "datamodule.global_batch_size=24"), "val/acc", (1, 10, 50)),
    "gpt": ((*GPT, "datamodule.global_batch_size=8"), "val/loss", (1, 10, 50, 150)),
}
OTHERS = {
    "one flipped bit": ("+callbacks.kept.flips=true",),
    "two processes": ("trainer.devices=2",),
}


class Kept(Callback):
    """Keeps all weights as one vector after each of these steps; `flips` the lowest bit of the first weight before the first."""

    def __init__(self, folder: str, steps: list[int], flips: bool = False) -> None:
        self.folder, self.steps, self.flips = Path(folder), steps, flips

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.flips:
            next(pl_module.parameters()).data.view(torch.int32).flatten()[0] ^= 1

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero and trainer.global_step in self.steps:
            vector = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])
            torch.save(vector, self.folder / f"{trainer.global_step}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS], help=f"of {', '.join(MODELS)}")
    models = parser.parse_args().models
    print(f"`{shlex.join(['python', 'benchmarks/float32_runs.py', *sys.argv[1:]])}`; torch {version('torch')}, lightning")
    print(f"{version('lightning')}, Python {platform.python_version()}, {platform.machine()}, on two cores of {processor()}.\n")
    print(
        "How far the weights of a run in float32 lie from those of one process, as |a-b| / |a| over all of them; and in brackets"
    )
    print("how much more or less its validation gives.")
    for model in models:
        options, metric, steps = MODELS[model]
        print(f"\n`python train.py {' '.join((*FIXED, *options))}`\n")
        print(f"| against one process | {' | '.join(f'step {step}' for step in steps)} |\n|---|{'---|' * len(steps)}", flush=True)
        with TemporaryDirectory() as folder:
            one, measured = trained(Path(folder, "one"), options, steps, metric)
            for name, overrides in OTHERS.items():
                other, changed = trained(Path(folder, name.replace(" ", "_")), (*options, *overrides), steps, metric)
                cells = [f"{((b - a).norm() / a.norm()).item():.0e}" for a, b in zip(one, other, strict=True)]
                print(f"| {name} | {' | '.join(cells)} ({metric} {changed - measured:+.3f}) |", flush=True)


def trained(folder: Path, options: tuple[str, ...], steps: tuple[int, ...], metric: str) -> tuple[list[torch.Tensor], float]:
    """The weights after each of the steps, in float64, and the metric after the last."""
    folder.mkdir()
    kept = ("+callbacks.kept._target_=float32_runs.Kept", f"+callbacks.kept.folder={folder}", f"+callbacks.kept.steps={[*steps]}")
    run = (f"hydra.run.dir={folder / 'run'}", f"trainer.max_steps={steps[-1]}")
    command = [sys.executable, str(ROOT / "train.py"), *FIXED, *kept, *options, *run]
    done = subprocess.run(
        [part.replace("[1, ", "[1,").replace(", ", ",") for part in command],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    content = read_json(folder / "run" / "metrics.json") or {}
    return [torch.load(folder / f"{step}.pt", weights_only=True).double() for step in steps], content["metrics"][metric]


if __name__ == "__main__":
    main()
