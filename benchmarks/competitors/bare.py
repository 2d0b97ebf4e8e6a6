"""The floor: a plain loop over data in memory, a batch at a time. With several processes under DistributedDataParallel."""

import torch
from torch.nn import functional
from workload import Workload


def main() -> None:
    work = Workload.given()
    inputs, targets = work.data(work.steps * work.processes)
    val_inputs, val_targets = work.data(work.val_batches)
    with work.distributed(work.model(), gradient_as_bucket_view=True) as net:
        optimizer = work.optimizer(net)
        with work.timed():
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[work.rank :: work.processes]
            for ids in order.split(work.batch_size):
                loss = functional.cross_entropy(net(inputs[ids].float() / 255), targets[ids])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                for ids in torch.arange(work.rank, len(val_inputs), work.processes).split(work.batch_size):
                    outputs = net(val_inputs[ids].float() / 255)
                    functional.cross_entropy(outputs, val_targets[ids])
                    (outputs.argmax(dim=1) == val_targets[ids]).sum()


if __name__ == "__main__":
    main()
