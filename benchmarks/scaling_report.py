"""The example of docs/scaling-report.md anew, on two idle cores:  python benchmarks/scaling_report.py SWEEP_DIR --data FOLDER

Trains a small ViT on MNIST's images with one process and two, at two rates and three seeds, leaves the report in
benchmarks/scaling_report/, and its pictures in docs/: those of the report, and by chromium the first screen of the page. FOLDER
is torchvision's, with MNIST in it.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ["sweep=scaling", "model=vit", "model.net.width=64", "model.net.depth=4", "datamodule=mnist", "trainer=cpu"]
OPTIONS += ["datamodule.global_batch_size=128", "trainer.devices=1,2", "model.optimizer.lr=1e-3,3e-3", "seed=0,1,2"]
OPTIONS += ["trainer.max_epochs=1", "test=false"]
PICTURES = {"scaling": "scaling_example", "rates": "rates_example"}  # of the report, and what docs/ calls them
SIZE = "980,960"  # of the first screen, in pixels


def train(sweep: Path, data: Path, steps: int) -> None:
    """From the folder above the data, whose name alone then is in the report."""
    where = [f"hydra.sweep.dir={sweep}", f"datamodule.data_dir={data.name}", f"trainer.limit_train_batches={steps}"]
    command = [sys.executable, ROOT / "train.py", "-m", *OPTIONS, *where]
    subprocess.run(command, cwd=data.parent, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


def publish(report: Path) -> None:
    folder, docs = ROOT / "benchmarks" / "scaling_report", ROOT / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in (*report.glob("*.png"), report / "report.md", report / "report.html"):
        shutil.copy(path, folder)
    for name, picture in PICTURES.items():
        shutil.copy(report / f"{name}.png", docs / f"{picture}.png")
    screen = [f"--window-size={SIZE}", f"--screenshot={docs / 'report_first_screen.png'}", (report / "report.html").as_uri()]
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run([*browser, *screen], check=True, timeout=60, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    train(arguments.sweep.absolute(), arguments.data.absolute(), arguments.steps)
    publish(arguments.sweep.absolute() / "report")
