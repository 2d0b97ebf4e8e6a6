"""The program that DDP guides show: a Dataset read sample by sample through a DataLoader, a DistributedSampler, a plain loop."""

import os
from typing import Any

import torch
import torch.distributed as dist
from task import RATE, Task
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset[tuple[Tensor, int]]):
    """As torchvision's datasets are: one image at a time, scaled to 0..1."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].float().div(255), int(self.labels[index])


def main() -> None:
    task = Task.given()
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model: Any = task.model()
    if processes > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    dataset = Images(*task.data(task.steps, processes))
    sampler = DistributedSampler(dataset, num_replicas=processes, rank=rank)
    loader = DataLoader(dataset, batch_size=task.batch_size, sampler=sampler)
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=RATE)
    with task.timed(rank, processes):
        sampler.set_epoch(0)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss.item()  # which the guides print
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, targets in DataLoader(Images(*task.data(task.val_batches)), batch_size=task.batch_size):
                correct += int((model(inputs).argmax(dim=1) == targets).sum())
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
