"""Predicts images with a trained classifier, to CSV: path, prediction, probability.

    python scripts/predict.py RUN_DIR INPUT... [key=value ...]
    python scripts/predict.py RUN_DIR photos/ cat.jpg --output predictions.csv datamodule.batch_size=256

An INPUT is an image or a folder, which is searched through. Images become the size and colour of the training data.
"""

import argparse
import contextlib
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lockstep.cli import start
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, config_error
from lockstep.runs.saved import checkpoint_of, saved_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="images, folders, and changes to the saved config as key=value"
    )
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: the terminal")
    arguments = parser.parse_intermixed_args()
    overrides = [item for item in arguments.inputs if "=" in item and not Path(item).exists()]
    paths = list(_images(Path(item) for item in arguments.inputs if item not in overrides))
    cfg = saved_config(arguments.run_dir, overrides)
    checkpoint = checkpoint_of(arguments.run_dir, arguments.checkpoint)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(arguments.output.open("w", newline="")) if arguments.output else sys.stdout
        writer = csv.writer(file)
        writer.writerow(["path", "prediction", "probability"])
        writer.writerows(_predictions(cfg, checkpoint, paths))
    if arguments.output:
        print(f"{len(paths)} predictions in {arguments.output}")


def _images(inputs: Iterator[Path]) -> Iterator[Path]:
    from lockstep.datamodules.images import SUFFIXES, find_images

    for path in inputs:
        if not path.exists():
            raise config_error("INPUT", path, "no such file or folder")
        found = [path] if path.is_file() else [image for folder in sorted(_folders(path)) for image in find_images(folder)]
        if not found:
            raise config_error("INPUT", path, f"has no {', '.join(SUFFIXES)} in it")
        yield from found


def _folders(path: Path) -> list[Path]:
    return [path, *(folder for folder in path.rglob("*") if folder.is_dir())]


def _predictions(cfg: DictConfig, checkpoint: Path, paths: list[Path]) -> Iterator[tuple[Any, ...]]:
    from torch.utils.data import DataLoader

    from lockstep.build import load_model
    from lockstep.datamodules.images import ImageFiles
    from lockstep.models import Classifier

    model = load_model(checkpoint)
    if not isinstance(model, Classifier) or len(model.spec.input_shape) != 3:
        raise ConfigError(f"{checkpoint}: predicts images with classifiers; this is a {type(model).__name__} of {model.spec}")
    cfg.trainer.devices = 1
    model = model.to({"gpu": "cuda"}.get(device := Plan.of(cfg).accelerator, device))
    names = model.spec.class_names or [str(i) for i in range(model.spec.num_outputs)]
    images: Any = ImageFiles(paths, model.spec.input_shape)
    loader = DataLoader(images, batch_size=cfg.datamodule.batch_size, num_workers=cfg.datamodule.num_workers)
    remaining = iter(paths)
    for batch in loader:
        best = model.predict(batch).max(dim=1)
        for probability, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            yield next(remaining), names[index], f"{probability:.6f}"


if __name__ == "__main__":
    start(main)
