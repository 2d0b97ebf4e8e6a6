"""How long training stands still for a checkpoint of 100 MB: saves.py RECORD HOW, where HOW is plain, at_once or in_background.

The model is trained by SGD without momentum: a checkpoint holds little but its weights. `plain` is torch.save alone, which
neither waits for the disk nor reads the file back. The first save is not counted.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose

SAVES = 5
OPTIONS = ("datamodule=synthetic_images", "datamodule.shape=[1,28,28]", "datamodule.length=8000", "datamodule.val_length=1")
OPTIONS += ("model=mlp", "model.net.hidden=[4800,4600]", "model/optimizer=sgd", "model.optimizer.momentum=0.0", "logger=csv")
OPTIONS += ("guards.checkpoint.every_n_steps=10", "callbacks.best_checkpoint=null", f"trainer.max_steps={10 * SAVES + 15}")
OPTIONS += ("trainer=cpu", "trainer.enable_progress_bar=false", "callbacks.progress=null", "callbacks.pictures=null")


class Timed:
    """Wraps a function, and keeps how long each call took, in seconds on the clock and of the processor."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.times: list[tuple[float, float]] = []

    def __call__(self, *arguments: Any, **named: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.function(*arguments, **named)
        self.times.append((time.perf_counter() - wall, time.process_time() - cpu))


def main() -> None:
    record, how = Path(sys.argv[1]), sys.argv[2]
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        asynchronous = str(how == "in_background").lower()
        cfg = compose(*OPTIONS, f"run_dir={folder}", f"trainer.checkpoint_io.async={asynchronous}")
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        if how == "plain":
            save = Timed(lambda: torch.save(model.state_dict(), Path(folder) / "plain.pt"))
            for _ in range(SAVES + 1):
                save()
        else:
            io: Any = trainer.strategy.checkpoint_io
            io.save_checkpoint = save = Timed(io.save_checkpoint)
            trainer.fit(model, datamodule)
    walls, cpus = zip(*save.times[1 : SAVES + 1], strict=True)
    record.write_text(json.dumps({"steps": SAVES, "train_time": sum(walls), "train_cpu_time": sum(cpus)}))


if __name__ == "__main__":
    main()
