"""How far a run in float32 lies from one on two processes, and from a flipped bit.

    python benchmarks/float32_runs.py [cnn gpt resnet18] [--picture docs/float32_runs.png]

Each model is trained from the same seed on one process, on two at the same global batch, and on one process where the lowest bit
of one weight is flipped before the first step; every process has one thread. Given are |a-b| / |a| over all weights, a being
those of one process, after some steps; and after the last one what is measured in validation. The picture has more steps.
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
from matplotlib.figure import Figure
from measuring import run_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

FIXED = ("trainer=cpu", "model/lr_scheduler=constant", "logger=csv", "test=false", "trainer.max_epochs=-1")
GPT = ("model=gpt_nano", "model.net.width=32", "model.net.depth=2", "datamodule=text", "datamodule.context=64")
GPT += ("trainer.limit_val_batches=20", "optimized_metric=val/loss", "optimized_mode=min")
STEPS, IN_TABLE = (1, 2, 5, 10, 20, 50, 100, 200, 300), (1, 10, 50, 300)
MODELS: dict[str, tuple[tuple[str, ...], str, int]] = {  # what is trained, the metric, and how many steps
    "cnn": (("model=cnn", "datamodule.global_batch_size=48"), "val/acc", 300),
    "gpt": ((*GPT, "datamodule.global_batch_size=8"), "val/loss", 300),
    "resnet18": (("model=resnet18", "datamodule.global_batch_size=24"), "val/acc", 50),
}
COLORS = {"cnn": "tab:blue", "gpt": "tab:orange", "resnet18": "tab:green"}
Distances = dict[str, dict[int, float]]  # of a run that differs, by step


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
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draws the distances over the steps")
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
    measured: dict[str, Distances] = {}
    for model in arguments.models:
        print(f"\n`{' '.join((*FIXED, *MODELS[model][0]))}`\n")
        measured[model], metrics = compare(model)
        print("\n".join(table(model, measured[model], metrics)), flush=True)
    if arguments.picture:
        draw(measured, arguments.picture)


def compare(model: str) -> tuple[Distances, dict[str, float]]:
    """How far two runs lie from that of one process, and how much more their validation gives."""
    with TemporaryDirectory() as folder:
        for processes in (1, 2):
            run_ranks([sys.executable, __file__, model, "--into", folder], processes)
        one, *others = (torch.load(Path(folder, f"{name}.pt"), weights_only=True) for name in ("one", "flipped", "two"))
    distances: Distances = {}
    metrics: dict[str, float] = {}
    for name, other in zip(("one flipped bit", "two processes"), others, strict=True):
        pairs = zip(STEPS, one["weights"], other["weights"], strict=False)  # as many as the model has steps
        distances[name] = {step: ((b.double() - a.double()).norm() / a.double().norm()).item() for step, a, b in pairs}
        metrics[name] = other["metric"] - one["metric"]
    return distances, metrics


def table(model: str, distances: Distances, metrics: dict[str, float]) -> list[str]:
    _, metric, last = MODELS[model]
    steps = [step for step in IN_TABLE if step <= last]
    lines = [f"| against one process | {' | '.join(f'step {step}' for step in steps)} |", f"|---|{'---|' * len(steps)}"]
    for name, by_step in distances.items():
        cells = " | ".join(f"{by_step[step]:.0e}" for step in steps)
        lines.append(f"| {name} | {cells} ({metric} {metrics[name]:+.3f}) |")
    return lines


def draw(measured: dict[str, Distances], path: Path) -> None:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    for model, distances in measured.items():
        for (name, by_step), line in zip(distances.items(), (":", "-"), strict=True):
            axis.loglog([*by_step], [*by_step.values()], line, color=COLORS[model], label=f"{model}, {name}")
    axis.set(xlabel="step", ylabel="distance of the weights, |a-b| / |a|", title="From one process, in float32")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110)


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
    options, metric, steps = MODELS[model]
    devices = f"trainer.devices={os.environ.get('WORLD_SIZE', '1')}"
    cfg = compose(*FIXED, *options, devices, f"trainer.max_steps={steps}", f"run_dir={folder}")
    datamodule, module, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks.append(kept := Kept(flips))  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit(module, datamodule)
    (measured,) = trainer.validate(module, datamodule, verbose=False)  # training may end within an epoch
    return {"weights": kept.weights, "metric": measured[metric]}


if __name__ == "__main__":
    main()
