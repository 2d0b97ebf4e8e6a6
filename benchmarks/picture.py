"""Draws docs/one_equals_many.png: the same experiment on one, two and four processes, in one global batch.

python benchmarks/picture.py
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = (
    "model=cnn",
    "model.net.width=16",
    "model/lr_scheduler=constant",
    "datamodule.augment=null",
    "trainer.max_epochs=8",
    "test=false",
)
BATCHES = ("datamodule.global_batch_size=48", "datamodule.drop_last=false", "logger=csv")
STYLES = {1: ("tab:blue", "-", 5.0), 2: ("tab:orange", "-", 2.5), 4: ("black", ":", 1.5)}


def main() -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    for devices, (color, line, width) in STYLES.items():
        rows = train(devices)
        for axis, metric in zip(axes, ("train/loss", "val/acc"), strict=True):
            points = [(int(row["epoch"]) + 1, float(row[metric])) for row in rows if row.get(metric)]
            label = f"{devices} process{'es' if devices > 1 else ''}"
            axis.plot(*zip(*points, strict=True), color=color, linestyle=line, linewidth=width, label=label)
            axis.set(xlabel="epoch", title=metric)
            print(devices, metric, points[-1])
    axes[0].legend(frameon=False)
    (ROOT / "docs").mkdir(exist_ok=True)
    figure.savefig(ROOT / "docs" / "one_equals_many.png", dpi=110)


def train(devices: int) -> list[dict[str, str]]:
    """The rows of the run's CSV log."""
    with tempfile.TemporaryDirectory() as folder:
        where = (f"trainer.devices={devices}", "trainer.accelerator=cpu", f"hydra.run.dir={folder}/run")
        command = [sys.executable, str(ROOT / "train.py"), *OPTIONS, *BATCHES, *where]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
        with (Path(folder) / "run" / "csv" / "metrics.csv").open() as file:
            return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
