"""Small steps, traced and compiled in an import server: what torch's compiler imports, looks up and asks g++ for when it is first
used is there in the processes that are forked, each of which compiles its own step."""

from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from lockstep.extras.compiled_step.graph import compiled, why_torch_does_not
from lockstep.imports import CUDA_DRIVERS


def rehearse(backend: str) -> None:
    """Does nothing where there is a GPU: torch would touch it, and what is forked then could not use it."""
    if why_torch_does_not() or any(Path(driver).exists() for driver in CUDA_DRIVERS):
        return
    every, tqdm.monitor_interval = tqdm.monitor_interval, 0  # else compiling starts a thread that watches its progress bar
    try:
        with torch._dynamo.config.patch(trace_autograd_ops=True), torch.random.fork_rng(devices=[]):
            _rehearse(backend)
    finally:
        tqdm.monitor_interval = every


def _rehearse(backend: str) -> None:
    # Begun while tracing, autograd would start threads for GPUs that are pretended.
    torch.zeros((), requires_grad=True).backward()
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    parameters = [*net.parameters()]

    def step(inputs: Tensor, targets: Tensor) -> Any:
        loss = cross_entropy(net(inputs), targets, reduction="none").sum()
        return loss.detach(), torch.autograd.grad(loss, parameters)

    def add(inputs: Tensor) -> Tensor:
        return inputs + 1

    device = torch.device("cpu")
    # Of no samples: a product of matrices starts threads, for which a fork would wait in vain.
    compiled(step, "eager", device)(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    compiled(add, backend, device)(torch.zeros(2, 3))  # one kernel: the first time it has to be compiled
