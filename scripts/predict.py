"""Predicts images with a trained classifier, to CSV: path, prediction, probability; or data by a module's predict_step.

    python scripts/predict.py RUN_DIR INPUT... [key=value ...]
    python scripts/predict.py RUN_DIR photos/ cat.jpg --output predictions.csv datamodule.batch_size=256
    python scripts/predict.py RUN_DIR trainer.devices=2                  # no INPUT: of predict_dataloader, the test split say

An INPUT is an image or a folder, which is searched through. Images become the size and colour of the training data. One
that can't be read is named, the others are predicted, and the exit code is 1. FILE is replaced when all is predicted.

Without INPUT each sample of predict_dataloader is predicted once, on any number of processes. FILE, by default predictions.pt in
RUN_DIR/predictions/ID, is for torch.load: {"indices": those of the dataset, "predictions": what predict_step has returned}.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import contextlib
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from lockstep.__main__ import script_parser
from lockstep.atomic_files import replacing
from lockstep.cli import start
from lockstep.config.plan import Plan
from lockstep.console import say
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.extras.saved_runs.saved import config_to_evaluate, find_checkpoint, load_saved_model, saved_config
from lockstep.launchers.environment import log_plainly
from lockstep.runs.run import Run
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "inputs", nargs="*", default=[], metavar="INPUT", help="images, folders, and changes to the saved config as key=value"
    )
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: the terminal, or predictions.pt")
    arguments = parser.parse_intermixed_args()
    overrides = [item for item in arguments.inputs if "=" in item and not Path(item).exists()]
    if overrides == arguments.inputs:
        _predict_data(arguments.run_dir, overrides, arguments.checkpoint, arguments.output)
        return
    paths = list(_images(Path(item) for item in arguments.inputs if item not in overrides))
    cfg = saved_config(arguments.run_dir, overrides)
    model = _classifier(cfg, find_checkpoint(arguments.run_dir, arguments.checkpoint))
    with _opened(arguments.output) as file:
        writer = csv.writer(file)
        writer.writerow(["path", "prediction", "probability"])
        predicted = 0
        for row in _predictions(cfg, model, paths):
            writer.writerow(row)
            predicted += 1
    if arguments.output:
        print(f"{predicted} predictions in {arguments.output}")
    if predicted < len(paths):
        sys.exit(ExitCode.FAILED)


def _predict_data(run_dir: Path, overrides: list[str], checkpoint: str | None, output: Path | None) -> None:
    log_plainly()
    cfg = config_to_evaluate(run_dir.absolute(), overrides, "predictions")
    cfg.init_from, cfg.optimized_metric = str(find_checkpoint(run_dir, checkpoint)), None
    cfg, plan = validated(cfg)
    cfg.test = False  # that is for a training
    with Run(cfg, plan) as run:
        path = (output or run.directory / "predictions.pt").absolute()
        if run.is_parent:
            run.launch(predict_data, path)
        else:
            predict_data(run, path)
    if run.is_owner:
        print(f"The predictions: {path}", flush=True)


def predict_data(run: Run, path: Path) -> None:
    from lockstep.extras.saved_runs.predictions import predict

    run.finish(predict(run.cfg, run.plan, path))


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[IO[str]]:
    """The terminal, or a file that takes the place of `output` when all is written."""
    if output is None:
        yield sys.stdout
        return
    path = output.resolve()
    if output.exists() and not output.is_file():
        raise config_error("--output", output, "is not a file; accepted is a file, there or not there yet")
    if not path.parent.is_dir():
        raise config_error("--output", output, f"there is no folder {path.parent}; accepted is a file in one that is there")
    with replacing(path) as file:
        yield file


def _images(inputs: Iterator[Path]) -> Iterator[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    for path in inputs:
        if not path.exists():
            raise config_error("INPUT", path, "no such file or folder")
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        images = [file for file in files if path.is_file() or file.suffix.lower() in IMG_EXTENSIONS]
        if not images:
            raise config_error("INPUT", path, f"has no {', '.join(IMG_EXTENSIONS)} in it")
        yield from images


class _Decoded:
    """A dataset for torch's DataLoader: files as images of one shape; in the place of one that can't be read what is wrong."""

    def __init__(self, paths: Sequence[Path], shape: Sequence[int]) -> None:
        self.paths, self.shape = paths, shape

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from lockstep.extras.images.decoding import decode

        try:
            return decode(self.paths[index], self.shape)
        except ConfigError as error:
            return str(error)


def _classifier(cfg: DictConfig, checkpoint: Path) -> Any:
    from lockstep.models import Classifier

    model = load_saved_model(cfg, checkpoint)
    if not isinstance(model, Classifier) or len(model.spec.input_shape) != 3:
        raise ConfigError(f"{checkpoint}: predicts images with classifiers; this is a {type(model).__name__} of {model.spec}")
    return model


def _predictions(cfg: DictConfig, model: Any, paths: list[Path]) -> Iterator[tuple[Any, ...]]:
    """A row for each image that can be read; the others are named on standard error."""
    import torch
    from torch.utils.data import DataLoader

    from lockstep.extras.images.decoding import WORKERS

    cfg.trainer.devices = 1
    model = model.to({"gpu": "cuda"}.get(device := Plan.from_config(cfg).accelerator, device))
    names = model.spec.class_names or [str(i) for i in range(model.spec.num_outputs)]
    workers = WORKERS if cfg.datamodule.num_workers is None else cfg.datamodule.num_workers
    options = {"batch_size": cfg.datamodule.batch_size, "num_workers": workers, "collate_fn": list}
    remaining = iter(paths)
    dataset: Any = _Decoded(paths, model.spec.input_shape)
    for batch in DataLoader(dataset, **options):
        decoded = [(path, image) for image, path in zip(batch, remaining, strict=False)]
        for _, problem in decoded:
            if isinstance(problem, str):
                say(problem)
        readable = [(path, image) for path, image in decoded if not isinstance(image, str)]
        if not readable:
            continue
        best = model.predict(torch.stack([image for _, image in readable])).max(dim=1)
        for (path, _), probability, index in zip(readable, best.values.tolist(), best.indices.tolist(), strict=True):
            yield path, names[index], f"{probability:.6f}"


if __name__ == "__main__":
    start(main)
