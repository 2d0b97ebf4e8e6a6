"""Predict images with a trained classifier, to CSV: path, prediction, probability; or data by a module's predict_step.

    lockstep predict RUN_DIR INPUT... [key=value ...]
    lockstep predict RUN_DIR photos/ cat.jpg --output predictions.csv datamodule.batch_size=256
    lockstep predict RUN_DIR                                             # no INPUT: of predict_dataloader, the test split say

An INPUT is an image or a folder, which is searched through. Images become the size and colour of the training data.

Without INPUT one process predicts predict_dataloader. FILE, by default RUN_DIR/predictions.pt, is for torch.load: a list of what
predict_step has returned for each batch; of a shipped model one tensor, in the order of the test split.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import contextlib
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.__main__ import script_parser
from lockstep.atomic_files import replacing
from lockstep.cli import start
from lockstep.history.saved_runs import config_to_evaluate, find_checkpoint, load_saved_model, saved_config
from lockstep.launchers.environment import log_plainly
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    what = "images, folders, and changes to the saved config as key=value"
    parser.add_argument("inputs", nargs="*", default=[], metavar="INPUT", help=what)
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: the terminal, or predictions.pt")
    given = parser.parse_intermixed_args()
    overrides = [item for item in given.inputs if "=" in item and not Path(item).exists()]
    checkpoint = find_checkpoint(given.run_dir, given.checkpoint)
    if overrides == given.inputs:
        _predict_data(given.run_dir, overrides, checkpoint, given.output)
        return
    cfg = saved_config(given.run_dir, overrides)
    paths = [path for item in given.inputs if item not in overrides for path in _images(Path(item))]
    rows = list(_predictions(load_saved_model(cfg, checkpoint), paths, cfg.datamodule.batch_size))
    with contextlib.nullcontext(sys.stdout) if given.output is None else replacing(given.output) as file:
        csv.writer(file).writerows([["path", "prediction", "probability"], *rows])


def _predict_data(run_dir: Path, overrides: list[str], checkpoint: Path, output: Path | None) -> None:
    import torch

    from lockstep.build import build
    from lockstep.datamodules.base import DataModule

    log_plainly()
    cfg = config_to_evaluate(run_dir.absolute(), overrides, "predictions")
    cfg.init_from, cfg.trainer.devices, cfg.test = str(checkpoint), 1, False
    cfg, plan = validated(cfg)
    datamodule, model, trainer = build(cfg, plan)
    predictions: Any = trainer.predict(model, datamodule)
    if isinstance(datamodule, DataModule) and all(isinstance(each, torch.Tensor) for each in predictions):
        order: list[int] = trainer.predict_dataloaders.sampler.order()  # pyright: ignore[reportOptionalMemberAccess]
        predictions = torch.cat(predictions)[torch.tensor(order).argsort()]
    path = output or run_dir / "predictions.pt"
    with replacing(path, mode="wb") as file:
        torch.save(predictions, file)
    print(f"The predictions: {path}")


def _images(path: Path) -> list[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return [path] if not path.is_dir() else sorted(file for file in path.rglob("*") if file.suffix.lower() in IMG_EXTENSIONS)


def _predictions(model: Any, paths: list[Path], batch_size: int) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each image."""
    import torch

    from lockstep.datamodules.image_folder import decode

    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    names = model.spec.class_names or range(model.spec.num_outputs)
    for first in range(0, len(paths), batch_size):
        batch = paths[first : first + batch_size]
        best = model.predict(torch.stack([decode(path, model.spec.input_shape) for path in batch])).max(dim=1)
        for path, probability, index in zip(batch, best.values.tolist(), best.indices.tolist(), strict=True):
            yield path, names[index], f"{probability:.6f}"


if __name__ == "__main__":
    start(main)
