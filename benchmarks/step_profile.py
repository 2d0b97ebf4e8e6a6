"""Where a training step's time goes: `python train.py` as shipped, on the data and with the net of the suite `mlp`, profiled.

    python benchmarks/step_profile.py [overrides]

Time is by the clock, by who spends it: a kernel of torch's counts for the file that calls it. cProfile makes each call of a
Python function dearer by about a microsecond, and a kernel by nothing much: the shares of Python code are upper bounds.
"""

import cProfile
import pstats
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hardware import processor
from lightning import Callback
from measuring import measured
from run import heading
from suites import SUITES

FIRST, LAST = 100, 1399  # of the 1,500 steps those that are profiled
# By the first that a file's path begins with, in site-packages or src/lockstep.
PARTS = {
    "torch/optim/": "the optimizer and the learning rate",
    "torch/nn/": "the net's forward pass, and the loss",
    "torch/autograd/": "the backward pass",
    "torch/_tensor": "the backward pass",
    "models/classifier": "accuracy and top 3 of every step",
    "torchmetrics": "their means over samples",
    "models/sample_mean": "their means over samples",
    "models/epoch_metrics": "their means over samples",
    "models/": "preparing the input, weighting the loss",
    "datamodules/": "making the batch",
    "callbacks/": "guards and callbacks",
    "trainer/": "the loop",
    "lightning/": "the loop",
}
ELSE = "the rest, of Python and torch"
Function = tuple[str, int, str]


class Profile(Callback):
    """Leaves the profile at that path."""

    def __init__(self, path: str) -> None:
        self.path, self.profile = path, cProfile.Profile()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == FIRST:
            self.profile.enable()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == LAST:
            self.profile.disable()
            self.profile.dump_stats(self.path)


def spent(statistics: dict[Function, Any]) -> tuple[Counter[str], Counter[str]]:
    """Seconds, and calls, by part; what has no file of its own, a built-in function, is its callers'."""
    seconds, calls = Counter[str](), Counter[str]()
    for function, (_, number, own, _, callers) in statistics.items():
        if function[0] != "~":
            seconds[part(function)] += own
            calls[part(function)] += number
            continue
        for caller, (_, times, of_caller, _) in callers.items():
            seconds[part(caller)] += of_caller
            calls[part(caller)] += times
    return seconds, calls


def part(function: Function) -> str:
    path = function[0].rpartition("/site-packages/")[2].rpartition("/src/lockstep/")[2]
    return next((name for piece, name in PARTS.items() if path.startswith(piece)), ELSE)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.profile"
        callback = f"+callbacks.profile={{_target_: step_profile.Profile, path: {path}}}"
        competitors = SUITES["mlp"].competitors([callback, *sys.argv[1:]])
        measured(next(one for one in competitors if one.processes == 1 and not one.starts_as_ranks))  # train.py
        statistics: Any = pstats.Stats(str(path))
    seconds, calls = spent(statistics.stats)
    steps = LAST - FIRST + 1
    print(heading(processor()), "", "| of a step | µs | calls |", "|---|---|---|", sep="\n")
    for name, own in seconds.most_common():
        print(f"| {name} | {own / steps * 1e6:,.0f} | {calls[name] / steps:,.0f} |")
    print(f"| **all** | {seconds.total() / steps * 1e6:,.0f} | {calls.total() / steps:,.0f} |")


if __name__ == "__main__":
    main()
