"""Net, data, optimizer and batch of all competitors of a suite of steps. Imports torch and nothing of Lightning."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from turns import end_turns, wait_for_turn

from lockstep.nets import CNN, MLP
from lockstep.nets.resnet import resnet

NETS = {
    "mlp": lambda shape, classes: MLP(shape, classes, [256]),
    "cnn": CNN,
    "resnet18": lambda shape, classes: resnet(shape, classes, 18),
}
CLASSES = 10
RATE, DECAY = 2e-3, 0.01  # conf/model/optimizer/adamw.yaml


@dataclass
class Workload:
    net: str
    shape: tuple[int, int, int]  # channels, height, width
    batch_size: int
    steps: int
    val_batches: int
    record: Path
    rank: int = int(os.environ.get("RANK", 0))
    processes: int = int(os.environ.get("WORLD_SIZE", 1))

    @classmethod
    def given(cls) -> "Workload":
        """Return the one of the command line. Denormal numbers are zero: how many there are depends on which ReLUs die."""
        torch.set_flush_denormal(True)
        parser = argparse.ArgumentParser()
        parser.add_argument("--net", choices=NETS, required=True)
        parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split(","))), required=True)
        for name in ("batch-size", "steps", "val-batches"):
            parser.add_argument(f"--{name}", type=int, required=True)
        parser.add_argument("--record", type=Path, required=True)
        return cls(**vars(parser.parse_args()))

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return NETS[self.net](self.shape, CLASSES)

    @contextmanager
    def distributed(self, net: nn.Module, **options: Any) -> Iterator[nn.Module]:
        """The net under DistributedDataParallel, where there are several processes."""
        if self.processes == 1:
            yield net
            return
        dist.init_process_group("gloo")
        yield DistributedDataParallel(net, **options)
        dist.destroy_process_group()

    def data(self, batches: int) -> tuple[Tensor, Tensor]:
        """uint8 images and class numbers for so many batches."""
        length = batches * self.batch_size
        return torch.randint(0, 256, (length, *self.shape), dtype=torch.uint8), torch.randint(0, CLASSES, (length,))

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """The training, for the record of rank zero."""
        wait_for_turn()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        end_turns()
        if self.rank == 0:
            samples = self.steps * self.batch_size * self.processes
            content = {"samples_trained": samples, "steps": self.steps, "train_time": wall, "train_cpu_time": cpu}
            self.record.write_text(json.dumps(content))
