"""The time of steps once a program has warmed up: in a loop of one's own, and by steady_callback.py in `train.py`."""

import time
from typing import Any

import torch
from turns import end_turns, wait_for_turn

WARM_UP = 5  # steps, compilation among them


class Stopwatch:
    """Told of each step's end. The device is waited for twice: when the clock starts and when it stops."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.steps = device, steps
        self.done = self.samples = 0
        self.wall = self.cpu = 0.0

    def count(self, samples: int) -> None:
        self.done += 1
        self.samples += samples * (self.done > WARM_UP)
        if self.done in (WARM_UP, self.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            if self.done == WARM_UP:
                wait_for_turn()
            self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
            if self.done == self.steps:
                end_turns()

    def record(self) -> dict[str, Any]:
        gib = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None
        counts = {"samples_trained": self.samples, "steps": self.steps - WARM_UP, "device_memory_gib": gib}
        return counts | {"train_time": self.wall, "train_cpu_time": self.cpu}
