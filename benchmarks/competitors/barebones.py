"""Lightning's own floor, Trainer(barebones=True): no logger, callbacks, checkpoints, bar. The same module as train.py's."""

import os
from functools import partial
from typing import Any

import torch
from lightning import Trainer
from task import DECAY, RATE, Task

from lockstep.datamodules import SyntheticImages
from lockstep.models import Classifier
from lockstep.models.schedules import constant


def main() -> None:
    task = Task.given()
    processes = int(os.environ.get("WORLD_SIZE", 1))
    lengths = {"length": task.steps * task.batch_size * processes, "val_length": max(1, task.val_batches * task.batch_size)}
    data = SyntheticImages(shape=task.shape, num_classes=10, test_length=1, batch_size=task.batch_size, **lengths)
    model = Classifier(
        net=task.model(),
        spec=data.spec,
        optimizer=partial(torch.optim.AdamW, lr=RATE, weight_decay=DECAY, fused=True),
        lr_scheduler=partial(constant, interval="step", frequency=1, monitor=None, warmup_steps=0, warmup_epochs=0),
        metrics=["loss", "acc", "top3"],
    )
    settings: dict[str, Any] = {"strategy": "ddp", "devices": processes} if processes > 1 else {"devices": 1}
    trainer = Trainer(accelerator="cpu", max_epochs=1, barebones=True, **settings)
    with task.timed(int(os.environ.get("RANK", 0)), processes):
        trainer.fit(model, data)


if __name__ == "__main__":
    main()
