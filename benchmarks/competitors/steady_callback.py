"""The stopwatch of steady.py as a callback: +callbacks.stopwatch={_target_: steady_callback.Steady}. Leaves steady.json."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import Callback
from steady import Stopwatch
from turns import end_turns, wait_for_turn

from lockstep.callbacks.monitors import Monitor


class Steady(Monitor, Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.stopwatch = Stopwatch(trainer.num_training_batches)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.stopwatch.count(len(batch[0]))
        if trainer.is_last_batch and trainer.is_global_zero:
            record = self.stopwatch.record()
            record["samples_trained"] *= trainer.world_size
            (Path(trainer.default_root_dir) / "steady.json").write_text(json.dumps(record))


class Turns(Monitor, Callback):
    """Around a whole training, whose time `train.py` records."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        wait_for_turn()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        end_turns()


class FlushDenormal(Callback):
    """Takes denormal numbers for zero, as the programs without Lightning do (workload.py)."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        torch.set_flush_denormal(True)
