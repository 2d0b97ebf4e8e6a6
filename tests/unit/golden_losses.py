"""The losses a shipped model starts with, as files under tests/golden/ that a refactor must reproduce.

They are written anew by `python tests/unit/golden_losses.py`: look at the difference before you commit it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import Callback

from lockstep.build import build
from lockstep.callbacks import CounterBasedRandomness
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

FOLDER = Path(__file__).parents[1] / "golden"
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[3,8,8]", "datamodule.batch_size=8", "datamodule.length=40")
TEXT = ("datamodule=text", "datamodule.context=32", "datamodule.batch_size=4", "datamodule.val_fraction=0.0")
CONFIGS = {
    "linear": ("datamodule=random_regression", "trainer.max_steps=5"),
    "mlp": ("model.net.dropout=0.2", "datamodule.drop_last=false", "datamodule.batch_size=500", "trainer.max_steps=5"),
    "cnn": ("model/lr_scheduler=cosine", "datamodule.standardize=true", "trainer.max_steps=5"),
    "resnet18": (*IMAGES, "+datamodule.augment.flip=true", "+datamodule.augment.crop=1", "trainer.max_steps=3"),
    "resnet50": (*IMAGES, "trainer.max_steps=2"),
    "vit": (*IMAGES, "model.net.patch=2", "model.net.width=32", "trainer.max_steps=3"),
    "gpt": (*TEXT, "model.net.kv_heads=2", "trainer.max_steps=3"),
    "gpt_nano": (*TEXT, "trainer.max_steps=3"),
}
FIXED = ("trainer=cpu", "trainer.precision=64-true", "trainer.enable_progress_bar=false", "trainer.limit_val_batches=0")
FIXED += ("~logger", "~guards", "~callbacks", "test=false", "datamodule.augment=null", "optimized_metric=train/loss")


class Losses(Callback):
    """The loss of each batch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.values.append(float(outputs["loss"]))


def losses(model: str, folder: Path) -> list[float]:
    """Return the losses of the first steps on one process in float64."""
    text = (f"datamodule.paths=[{FOLDER}/text]", "datamodule.test_fraction=0.0", f"datamodule.cache_dir={folder}")
    here = (f"model={model}", f"run_dir={folder}", *CONFIGS[model], *(text if CONFIGS[model][0] == TEXT[0] else ()))
    cfg = compose(*FIXED, *here)
    datamodule, module, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks = [CounterBasedRandomness(cfg.seed), seen := Losses()]  # pyright: ignore[reportAttributeAccessIssue]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer.fit(module, datamodule)
    torch.set_num_threads(threads)
    return seen.values


if __name__ == "__main__":
    for model in CONFIGS:
        content = {"config": CONFIGS[model], "losses": losses(model, Path("data"))}
        (FOLDER / f"{model}.json").write_text(json.dumps(content, indent=2) + "\n")
        print(model, content["losses"])
