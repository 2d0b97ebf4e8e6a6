"""The gradient noise scale of MNIST over a training, beside the figure of McCandlish et al. 2018 (arXiv:1812.06162).

    python benchmarks/noise_scale.py [--data data] [--epochs 4] > benchmarks/noise_scale.md

Two nets without BatchNorm, for which every sample has a gradient of its own, trained by plain SGD at batch 128. Every step is
looked at, with halves of its batch. Draws docs/noise_scale_mnist.png too.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hardware import processor
from matplotlib.figure import Figure
from torch import nn

from lockstep.config.overrides import quote

ROOT = Path(__file__).resolve().parents[1]
PAPER = 900  # samples: of its MNIST model, on average over a training
NETS = {
    "two convolutions": ("model=classifier", "model.net={_target_:noise_scale.Convolutions}"),
    "MLP, 256 units": ("model=mlp",),
}
OPTIONS = ("datamodule=mnist", "datamodule.batch_size=128", "model/optimizer=sgd", "model.optimizer.lr=0.1")
OPTIONS += ("model.optimizer.momentum=0", "callbacks=noise_scale", "callbacks.noise_scale.every_n_steps_alone=1")
OPTIONS += ("callbacks.noise_scale.decay=0.98", "trainer.accelerator=cpu", "logger=csv", "test=false")
STEPS = (50, 200, 1000)  # of which the table tells, besides the last


class Convolutions(nn.Sequential):
    """Two 3x3 convolutions of stride 2, with 32 and 64 channels, and 128 units; ReLU."""

    def __init__(self, input_shape: Sequence[int], num_outputs: int) -> None:
        layers = [nn.Conv2d(input_shape[0], 32, 3, stride=2, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)]
        hidden = [nn.Flatten(), nn.LazyLinear(128)]
        super().__init__(layers[0], nn.ReLU(), layers[1], nn.ReLU(), *hidden, nn.ReLU(), nn.Linear(128, num_outputs))
        self(torch.zeros(1, *input_shape))  # by which the lazy layer knows its size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="torchvision's folder of MNIST")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    made = f"torch {torch.__version__}, Python {platform.python_version()}, one thread on {os.cpu_count()} cores of {processor()}"
    print(f"`python benchmarks/noise_scale.py --epochs {given.epochs}`; {made}.\n")
    print("The noise scale in samples: smoothed, after so many steps, and on average over all of them. That of the paper's")
    print(f"MNIST model: {PAPER} on average.\n")
    columns = ["net", *(f"step {step}" for step in STEPS), "last step", "average", "train/loss", "val/acc"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.add_subplot(xlabel="step", ylabel="noise scale, samples", yscale="log")
    for name, options in NETS.items():
        curve, record = train(options, Path(given.data).absolute(), given.epochs)
        axis.plot(*zip(*curve.items(), strict=True), label=name)
        scales = [curve[step] for step in STEPS] + [record["noise_scale"], record["noise_scale_mean"]]
        metrics = [f"{record['metrics'][metric]:.4f}" for metric in ("train/loss", "val/acc")]
        print(f"| {' | '.join([name, *(f'{scale:,.0f}' for scale in scales), *metrics])} |", flush=True)
    axis.axhline(PAPER, color="black", linestyle="--", linewidth=1, label="the paper's, on average")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(ROOT / "docs" / "noise_scale_mnist.png", dpi=110)


def train(options: Sequence[str], data: Path, epochs: int) -> tuple[dict[int, float], dict[str, Any]]:
    """The noise scale by step, and metrics.json."""
    with tempfile.TemporaryDirectory() as folder:
        where = (f"datamodule.data_dir={quote(str(data))}", f"trainer.max_epochs={epochs}", f"hydra.run.dir={folder}/run")
        command = [sys.executable, str(ROOT / "train.py"), *options, *OPTIONS, *where]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            command, check=True, stdout=sys.stderr, timeout=1200, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        )
        with (Path(folder) / "run" / "csv" / "metrics.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("noise_scale")]
        record = json.loads((Path(folder) / "run" / "metrics.json").read_text())
    return {int(row["step"]): float(row["noise_scale"]) for row in rows}, record


if __name__ == "__main__":
    main()
