"""The program that DDP guides show: a Dataset read sample by sample through a DataLoader, a DistributedSampler, a plain loop."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from workload import RATE, Workload


class Images(Dataset[tuple[Tensor, int]]):
    """As torchvision's datasets are: one image at a time, scaled to 0..1."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].float().div(255), int(self.labels[index])


def main() -> None:
    work = Workload.given()
    dataset = Images(*work.data(work.steps * work.processes))
    sampler = DistributedSampler(dataset, num_replicas=work.processes, rank=work.rank)
    loader = DataLoader(dataset, batch_size=work.batch_size, sampler=sampler)
    with work.distributed(work.model()) as model:
        criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=RATE)
        with work.timed():
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
                for inputs, targets in DataLoader(Images(*work.data(work.val_batches)), batch_size=work.batch_size):
                    correct += int((model(inputs).argmax(dim=1) == targets).sum())


if __name__ == "__main__":
    main()
