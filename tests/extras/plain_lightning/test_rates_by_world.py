"""Rates that depend on the number of processes."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from in_process import become_rank
from plain_lightning import LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch import distributed

from lockstep.extras.plain_lightning.callback import PlainLightning


class Scaled(LitClassifier):
    def configure_optimizers(self) -> Any:
        self.made = torch.optim.SGD(self.parameters(), lr=0.05 * self.trainer.num_devices**0.5)
        warmup = torch.optim.lr_scheduler.LinearLR(self.made, 0.1)
        return [self.made], [warmup]


class Warms(LitClassifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10 // distributed.get_world_size())
        return {"optimizer": optimizer, "lr_scheduler": warmup}


def said(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    lines: dict[str, Any] = {}
    for kind in ("Scaled", "Warms", "LitClassifier"):
        target = f"plain_lightning.{kind}" if kind == "LitClassifier" else f"test_rates_by_world.{kind}"
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, records=records: records.append(record.getMessage())
        logging.getLogger("lockstep").addHandler(handler)
        trainer = fitted(folder / kind, f"model._target_={target}", "trainer.devices=2", "trainer.limit_train_batches=1")
        logging.getLogger("lockstep").removeHandler(handler)
        (plain,) = (one for one in trainer.callbacks if isinstance(one, PlainLightning))
        lines[kind] = [cause for cause in plain.causes if "reads" in cause], [line for line in records if "Not known wh" in line]
        if kind == "Scaled":
            assert trainer.lightning_module.made is trainer.optimizers[0]
    return lines


def test_a_rate_by_the_number_of_processes_is_named_and_a_schedule_said_to_be_unknown(tmp_path: Path) -> None:
    reads = "configure_optimizers reads"
    unknown = f"Not known whether it is as on one process: {reads} world_size, on which a schedule may depend"
    expected = {
        "Scaled": ([f"{reads} num_devices: the rate is {0.05 * 2**0.5:g}, and 0.05 on one process"], []),
        "Warms": ([], [unknown]),
        "LitClassifier": ([], []),
    }
    assert in_ranks(2, partial(said, folder=tmp_path), tmp_path) == [expected] * 2
