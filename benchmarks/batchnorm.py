"""What synchronised BatchNorm costs: training steps of two CPU processes over gloo, with it and without.

    python benchmarks/batchnorm.py [--steps 20] [--repeats 5] > benchmarks/batchnorm.md

Both train the same net under DDP with SGD on the same random batch, one thread a process. Each is measured `--repeats` times
in turn; the table has the least processor time, which other work on the machine disturbs least.
"""

import argparse
import os
import platform
import tempfile
import time
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hardware import processor
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from lockstep.config.construct import construct
from lockstep.trainer.batchnorm import synchronise_batchnorm

PROCESSES = 2
NETS = {"cnn": {"_target_": "lockstep.nets.CNN"}, "resnet18": {"_target_": "lockstep.extras.resnet.resnet.resnet", "depth": 18}}
MODELS = (("cnn", (1, 8, 8)), ("cnn", (1, 28, 28)), ("resnet18", (3, 8, 8)))
BATCH = 8  # of each process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    command = f"python benchmarks/batchnorm.py --steps {arguments.steps} --repeats {arguments.repeats}"
    print(f"`{command}`; torch {torch.__version__}, Python {platform.python_version()},")
    print(f"{platform.machine()}, {PROCESSES} processes over gloo, one thread each, on {os.cpu_count()} cores of {processor()}")
    load = f"{os.getloadavg()[0]:.0f}"
    print(
        f"(load {load} at the start), {BATCH} images a process and step. Rank zero's processor time, and in brackets the time by"
    )
    print("the clock, in milliseconds a step: the least of the repeats. What the ranks wait for each other is in the latter.\n")
    print("| model | images | BatchNorm layers | each its own | synchronised | processor time |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (arguments.steps, arguments.repeats, folder), nprocs=PROCESSES)


def rank(number: int, steps: int, repeats: int, folder: str) -> None:
    """Rank zero prints a row for each model."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", PROCESSES)
    dist.init_process_group("gloo", store=store, rank=number, world_size=PROCESSES)
    for name, shape in MODELS:
        torch.manual_seed(0)
        alone = construct("model.net", NETS[name], {"input_shape": shape, "num_outputs": 10})
        together = deepcopy(alone)
        synchronise_batchnorm(together)
        trainings = [Training(net, shape) for net in (alone, together)]
        times: list[list[tuple[float, float]]] = [[], []]
        for repeat in range(repeats + 1):
            for training, result in zip(trainings, times, strict=True):
                seconds = training.run(2 if repeat == 0 else steps)  # at first to warm up
                result.extend([seconds] if repeat else [])
        if number == 0:
            layers = sum(isinstance(layer, _BatchNorm) for layer in alone.modules())
            alone_ms, together_ms = ([1e3 * min(column) / steps for column in zip(*result, strict=True)] for result in times)
            cells = " | ".join(f"{work:.1f} ({clock:.1f})" for work, clock in (alone_ms, together_ms))
            price = together_ms[0] / alone_ms[0]
            print(f"| {name} | {'x'.join(map(str, shape))} | {layers} | {cells} | {price:.1f} times |", flush=True)
    dist.destroy_process_group()


class Training:
    """Of one net on one batch."""

    def __init__(self, net: nn.Module, shape: tuple[int, ...]) -> None:
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        self.inputs, self.targets = torch.rand(BATCH, *shape), torch.randint(10, (BATCH,))

    def run(self, steps: int) -> tuple[float, float]:
        """Seconds of so many steps: of this process's work, and by the clock."""
        dist.barrier()
        started, worked = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()
        return time.process_time() - worked, time.perf_counter() - started


if __name__ == "__main__":
    main()
