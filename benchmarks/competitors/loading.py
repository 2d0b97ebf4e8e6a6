"""What all competitors of the suite `loader` load. Imports nothing but Python's own library."""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Loading:
    folder: Path
    size: int  # pixels of the square that a picture becomes
    batch_size: int
    workers: int
    epochs: int
    cache: str | None
    record: Path

    @classmethod
    def given(cls) -> "Loading":
        """By the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        for name in ("size", "batch-size", "workers", "epochs"):
            parser.add_argument(f"--{name}", type=int, required=True)
        parser.add_argument("--cache", help="the folder for it; not given: there is none")
        parser.add_argument("--record", type=Path, required=True)
        return cls(**vars(parser.parse_args()))

    def measure(self, epoch: Callable[[], Iterable[int]], end: Callable[[], None] = lambda: None) -> None:
        """Goes through the epochs, whose batches are their sizes, and writes the record: workers are started and ended, by `end`
        where they are kept, and their processor time is counted, within what is measured."""
        wall, cpu = time.perf_counter(), _processor()
        sizes = [size for _ in range(self.epochs) for size in epoch()]
        end()
        wall, cpu = time.perf_counter() - wall, _processor() - cpu
        content = {
            "samples_trained": sum(sizes),
            "steps": len(sizes),
            "train_time": wall,
            "train_cpu_time": cpu,
        }
        self.record.write_text(json.dumps(content))


def _processor() -> float:
    """Seconds, of this process and of those it has started and that have ended."""
    return sum(os.times()[:4])
