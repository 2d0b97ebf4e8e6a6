"""How far a run in float32 lies from one on two processes, and from a flipped bit.

    python benchmarks/float32_runs.py [cnn gpt resnet18]

Each model is trained from the same seed on one process, on two at the same global batch, and on one process where the lowest bit
of one weight is flipped before the first step; every process has one thread. Given are |a-b| / |a| over all weights, a being
those of one process, after some steps; and after the last one what is measured in validation.
"""

import argparse
import logging
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from hardware import processor
from lightning import Callback, LightningModule, Trainer
from measuring import run_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

FIXED = ("trainer=cpu", "model/lr_scheduler=constant", "logger=csv", "test=false", "trainer.max_epochs=-1")
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", "datamodule=text", "datamodule.context=64")
GPT += ("trainer.limit_val_batches=20", "optimized_metric=val/loss", "optimized_mode=min")
STEPS = (1, 10, 50)
MODELS: dict[str, tuple[tuple[str, ...], str]] = {  # what is trained, and the metric
    "cnn": (("model=cnn", "datamodule.global_batch_size=48"), "val/acc"),
    "gpt": ((*GPT, "datamodule.global_batch_size=8"), "val/loss"),
    "resnet18": (("model=resnet18", "datamodule.global_batch_size=24"), "val/acc"),
}


class Kept(Callback):
    """Keeps all weights as one vector after each of the steps; `flips` the lowest bit of the first weight before the first."""

    def __init__(self, flips: bool) -> None:
        self.flips, self.weights = flips, list[torch.Tensor]()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.flips:
            next(pl_module.parameters()).data.view(torch.int32).flatten()[0] ^= 1

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step in STEPS:
            self.weights.append(torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # as a rank of this program
    arguments = parser.parse_args()
    if arguments.into is not None:
        train(arguments.models[0], arguments.into)
        return
    print(f"`{shlex.join(['python', 'benchmarks/float32_runs.py', *sys.argv[1:]])}`; torch {version('torch')}, lightning")
    print(f"{version('lightning')}, Python {platform.python_version()}, {platform.machine()}, on {processor()}.\n")
    print(
        "How far the weights of a run in float32 lie from those of one process, as |a-b| / |a| over all of them; and in brackets"
    )
    print("how much more or less its validation gives.")
    for model in arguments.models:
        print(f"\n`{' '.join((*FIXED, *MODELS[model][0]))}`\n")
        print("\n".join(table(model)), flush=True)


def table(model: str) -> list[str]:
    lines = [f"| against one process | {' | '.join(f'step {step}' for step in STEPS)} |", f"|---|{'---|' * len(STEPS)}"]
    with TemporaryDirectory() as folder:
        for processes in (1, 2):
            run_ranks([sys.executable, __file__, model, "--into", folder], processes)
        one, two, flipped = (torch.load(Path(folder, f"{name}.pt"), weights_only=True) for name in ("one", "two", "flipped"))
    for name, other in {"one flipped bit": flipped, "two processes": two}.items():
        pairs = zip(one["weights"], other["weights"], strict=True)
        cells = [f"{((b.double() - a.double()).norm() / a.double().norm()).item():.0e}" for a, b in pairs]
        lines.append(f"| {name} | {' | '.join(cells)} ({MODELS[model][1]} {other['metric'] - one['metric']:+.3f}) |")
    return lines


def train(model: str, folder: Path) -> None:
    """In each rank: what one process does twice, two do once."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        for name in ("one", "flipped"):
            torch.save(trained(model, folder, flips=name == "flipped"), folder / f"{name}.pt")
        return
    dist.init_process_group("gloo")
    result = trained(model, folder, flips=False)
    if dist.get_rank() == 0:
        torch.save(result, folder / "two.pt")
    dist.barrier()
    dist.destroy_process_group()


def trained(model: str, folder: Path, flips: bool) -> dict[str, Any]:
    options, metric = MODELS[model]
    devices = f"trainer.devices={os.environ.get('WORLD_SIZE', '1')}"
    cfg = compose(*FIXED, *options, devices, f"trainer.max_steps={STEPS[-1]}", f"run_dir={folder}")
    datamodule, module, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks.append(kept := Kept(flips))  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit(module, datamodule)
    (measured,) = trainer.validate(module, datamodule, verbose=False)  # training may end within an epoch
    return {"weights": kept.weights, "metric": measured[metric]}


if __name__ == "__main__":
    main()
