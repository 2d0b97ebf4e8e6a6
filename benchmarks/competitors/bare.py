"""The floor: a plain loop over data in memory, a batch at a time. With several processes under DistributedDataParallel."""

import os
from typing import Any

import torch
import torch.distributed as dist
from task import Task
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    task = Task.given()
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    net: Any = task.model()
    if processes > 1:
        dist.init_process_group("gloo")
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    inputs, targets = task.data(task.steps, processes)
    val_inputs, val_targets = task.data(task.val_batches)
    optimizer = task.optimizer(net)
    with task.timed(rank, processes):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[rank::processes]
        for ids in order.split(task.batch_size):
            loss = functional.cross_entropy(net(inputs[ids].float() / 255), targets[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for ids in torch.arange(rank, len(val_inputs), processes).split(task.batch_size):
                outputs = net(val_inputs[ids].float() / 255)
                functional.cross_entropy(outputs, val_targets[ids])
                (outputs.argmax(dim=1) == val_targets[ids]).sum()
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
