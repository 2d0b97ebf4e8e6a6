"""The time of steps once a program has warmed up: in a loop of one's own, and by steady_callback.py in `train.py`."""

import time
from typing import Any

from turns import end_turns, wait_for_turn

WARM_UP = 5  # steps


class Stopwatch:
    """Told of each step's end."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done = self.samples = 0
        self.wall = self.cpu = 0.0

    def count(self, samples: int) -> None:
        self.done += 1
        self.samples += samples * (self.done > WARM_UP)
        if self.done in (WARM_UP, self.steps):
            if self.done == WARM_UP:
                wait_for_turn()
            self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
            if self.done == self.steps:
                end_turns()

    def record(self) -> dict[str, Any]:
        counts = {"samples_trained": self.samples, "steps": self.steps - WARM_UP}
        return counts | {"train_time": self.wall, "train_cpu_time": self.cpu}
