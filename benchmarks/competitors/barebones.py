"""Lightning's own floor, Trainer(barebones=True): no logger, callbacks, checkpoints, bar. The same module as train.py's."""

from functools import partial
from typing import Any

import torch
from lightning import Trainer
from workload import DECAY, RATE, Workload

from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.models import Classifier
from lockstep.models.schedules import constant


def main() -> None:
    work = Workload.given()
    lengths = {"length": work.steps * work.batch_size * work.processes, "val_length": max(1, work.val_batches * work.batch_size)}
    data = SyntheticImages(shape=work.shape, num_classes=10, test_length=1, batch_size=work.batch_size, **lengths)
    model = Classifier(
        net=work.model(),
        spec=data.spec,
        optimizer=partial(torch.optim.AdamW, lr=RATE, weight_decay=DECAY, fused=True),
        lr_scheduler=constant,
        metrics=["loss", "acc"],
    )
    settings: dict[str, Any] = {"strategy": "ddp", "devices": work.processes} if work.processes > 1 else {"devices": 1}
    trainer = Trainer(accelerator="cpu", max_epochs=1, barebones=True, **settings)
    with work.timed():
        trainer.fit(model, data)


if __name__ == "__main__":
    main()
