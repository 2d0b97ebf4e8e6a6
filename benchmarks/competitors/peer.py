"""The steps of a suite by other libraries' loops, each as its documentation writes it: peer.py LIBRARY OPTIONS

All read the same data in memory a whole batch at a time, by a dataset with torch's `__getitems__`. Nothing is validated, logged
or saved. Started once for each process, as by torchrun. The first steps are not timed.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
from steady import Stopwatch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from workload import DECAY, RATE, Workload


class Images(Dataset[Any]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, ids: list[int]) -> dict[str, Tensor]:
        index = torch.as_tensor(ids)
        return {"inputs": self.images.index_select(0, index), "labels": self.labels.index_select(0, index)}


class Net(nn.Module):
    """Images, uint8, and class numbers to a loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.net(inputs.float() / 255), labels)}


Peer = Callable[[Workload, Net, DataLoader[Any], Stopwatch], None]


def bare(work: Workload, model: Net, loader: DataLoader[Any], watch: Stopwatch) -> None:
    """Without a DataLoader."""
    dataset: Any = loader.dataset
    with work.distributed(model, gradient_as_bucket_view=True) as net:
        optimizer = work.optimizer(net)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[work.rank :: work.processes]
        for ids in order.split(work.batch_size):
            loss = net(dataset.images[ids], dataset.labels[ids])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.count(len(ids))


def fabric(work: Workload, model: Net, loader: DataLoader[Any], watch: Stopwatch) -> None:
    from lightning import Fabric

    fabric = Fabric(accelerator="cpu", devices=work.processes, strategy="ddp" if work.processes > 1 else "auto")
    fabric.launch()
    net, optimizer = fabric.setup(model, work.optimizer(model))
    _train(net, optimizer, fabric.setup_dataloaders(loader), fabric.backward, watch)


def accelerate(work: Workload, model: Net, loader: DataLoader[Any], watch: Stopwatch) -> None:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator = Accelerator(cpu=True)
    net, optimizer, batches = accelerator.prepare(model, work.optimizer(model), loader)
    _train(net, optimizer, batches, accelerator.backward, watch)


def _train(net: Any, optimizer: Any, batches: Iterable[Any], backward: Callable[[Tensor], Any], watch: Stopwatch) -> None:
    for batch in batches:
        optimizer.zero_grad()
        backward(net(**batch)["loss"])
        optimizer.step()
        watch.count(len(batch["labels"]))


def transformers(work: Workload, model: Net, loader: DataLoader[Any], watch: Stopwatch) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments  # pyright: ignore[reportMissingImports]

    class Count(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.count(work.batch_size)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo" if work.processes > 1 else None,
            per_device_train_batch_size=work.batch_size,
            max_steps=work.steps,
            optim="adamw_torch_fused",
            learning_rate=RATE,
            weight_decay=DECAY,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        data: Any = loader.dataset
        Trainer(model, arguments, data_collator=_as_it_is, train_dataset=data, callbacks=[Count()]).train()


def _as_it_is(batch: Any) -> Any:
    return batch


PEERS: dict[str, Peer] = {
    "bare": bare,
    "fabric": fabric,
    "accelerate": accelerate,
    "transformers": transformers,
}


def main() -> None:
    peer = PEERS[sys.argv.pop(1)]
    work = Workload.given()
    dataset = Images(*work.data(work.steps * work.processes))
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=work.batch_size, shuffle=True, collate_fn=_as_it_is)
    watch = Stopwatch(work.steps)
    peer(work, Net(work.model()), loader, watch)
    assert watch.done == work.steps, f"{watch.done} steps of {work.steps}"
    if torch.distributed.is_initialized():  # gloo's threads abort a process that leaves with them running
        torch.distributed.destroy_process_group()
    if work.rank == 0:
        record = watch.record()
        work.record.write_text(json.dumps(record | {"samples_trained": record["samples_trained"] * work.processes}))


if __name__ == "__main__":
    main()
