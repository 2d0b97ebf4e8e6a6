"""Predicts images with a trained classifier, to CSV: path, prediction, probability.

    python scripts/predict.py RUN_DIR INPUT... [key=value ...]
    python scripts/predict.py RUN_DIR photos/ cat.jpg --output predictions.csv datamodule.batch_size=256

An INPUT is an image or a folder, which is searched through. Images become the size and colour of the training data. One
that can't be read is named, the others are predicted, and the exit code is 1.
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
from lockstep.console import say
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
    parser.add_argument("--allow", nargs="+", default=[], metavar="MODULE", help="trust what a checkpoint names in it")
    arguments = parser.parse_intermixed_args()
    overrides = [item for item in arguments.inputs if "=" in item and not Path(item).exists()]
    paths = list(_images(Path(item) for item in arguments.inputs if item not in overrides))
    cfg = saved_config(arguments.run_dir, overrides)
    checkpoint = checkpoint_of(arguments.run_dir, arguments.checkpoint)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(arguments.output.open("w", newline="")) if arguments.output else sys.stdout
        writer = csv.writer(file)
        writer.writerow(["path", "prediction", "probability"])
        predicted = 0
        for row in _predictions(cfg, checkpoint, paths, arguments.allow):
            writer.writerow(row)
            predicted += 1
    if arguments.output:
        print(f"{predicted} predictions in {arguments.output}")
    if predicted < len(paths):
        sys.exit(1)


def _images(inputs: Iterator[Path]) -> Iterator[Path]:
    from lockstep.datamodules.images import IMG_EXTENSIONS, find_images

    for path in inputs:
        if not path.exists():
            raise config_error("INPUT", path, "no such file or folder")
        found = [path] if path.is_file() else find_images(path)
        if not found:
            raise config_error("INPUT", path, f"has no {', '.join(IMG_EXTENSIONS)} in it")
        yield from found


def _predictions(cfg: DictConfig, checkpoint: Path, paths: list[Path], allow: list[str]) -> Iterator[tuple[Any, ...]]:
    """A row for each image that can be read; the others are named on standard error."""
    import torch
    from torch.utils.data import DataLoader

    from lockstep.build import load_model
    from lockstep.datamodules.images import ImageFiles
    from lockstep.models import Classifier

    model = load_model(checkpoint, allow)
    if not isinstance(model, Classifier) or len(model.spec.input_shape) != 3:
        raise ConfigError(f"{checkpoint}: predicts images with classifiers; this is a {type(model).__name__} of {model.spec}")
    cfg.trainer.devices = 1
    model = model.to({"gpu": "cuda"}.get(device := Plan.of(cfg).accelerator, device))
    names = model.spec.class_names or [str(i) for i in range(model.spec.num_outputs)]
    options = {"batch_size": cfg.datamodule.batch_size, "num_workers": cfg.datamodule.num_workers, "collate_fn": list}
    remaining = iter(paths)
    for batch in DataLoader(ImageFiles(paths, model.spec.input_shape), **options):
        found = [(path, image) for image, path in zip(batch, remaining, strict=False)]
        for _, problem in found:
            if isinstance(problem, str):
                say(problem)
        readable = [(path, image) for path, image in found if not isinstance(image, str)]
        if not readable:
            continue
        best = model.predict(torch.stack([image for _, image in readable])).max(dim=1)
        for (path, _), probability, index in zip(readable, best.values.tolist(), best.indices.tolist(), strict=True):
            yield path, names[index], f"{probability:.6f}"


if __name__ == "__main__":
    start(main)
