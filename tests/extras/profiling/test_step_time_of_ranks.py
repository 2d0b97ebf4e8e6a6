"""Communication is what a rank waits for after its last gradient, be it for a slower rank; two optimizers are looked at, too."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank, prepared
from lightning import LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from ranks import in_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lockstep.extras.profiling.step_time import StepTime

pytestmark = pytest.mark.slow
WAIT = 0.2  # seconds
LENGTH = ("trainer.max_epochs=2", "datamodule.batch_size=150", "trainer.log_every_n_steps=50")  # a log would wait in "forward"
OPTIONS = ("trainer.devices=2", "callbacks.step_time.every_n_steps=1", "guards.checkpoint.every_n_steps=null")


class Adversaries(LightningModule):
    """Two nets, each trained while the other is frozen, as Lightning's GAN of its examples is."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer, sign in zip(optimizers, (1, -1), strict=True):
            self.toggle_optimizer(optimizer)
            loss = sign * self.other(self.one(batch)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.one, self.other)], []


def train_adversaries(folder: Path) -> dict[str, Any]:
    monitors = [StepTime(every_n_steps=1)]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        **{"accelerator": "cpu", "devices": 2, "max_epochs": 2, "callbacks": monitors, "default_root_dir": folder, **quiet},
        strategy=DDPStrategy(find_unused_parameters=True, process_group_backend="gloo"),
        plugins=[LightningEnvironment()],
    )
    trainer.fit(Adversaries(), DataLoader(list(torch.ones(40, 2)), batch_size=2))
    return {"steps": trainer.global_step, "off": [monitor.is_off for monitor in monitors], **monitors[0].facts()}


def train(rank: int, world_size: int, folder: Path) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    become_rank(rank, world_size)
    datamodule, model, trainer = prepared(folder / "run", *OPTIONS, *LENGTH)
    forward = model.forward
    if rank == 1:
        model.forward = lambda inputs: time.sleep(WAIT) or forward(inputs)
    trainer.fit(model, datamodule)
    callback = next(callback for callback in trainer.callbacks if isinstance(callback, StepTime))
    return (
        {part: seconds / callback._count for part, seconds in callback._seconds.items()},
        callback.facts(),
        train_adversaries(folder / "two"),
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(2, partial(train, folder=folder), folder)


def test_the_faster_rank_waits_in_communication(ranks: list[Any]) -> None:
    (fast, record, _), (slow, same, _) = ranks
    assert slow["forward"] >= WAIT
    assert fast["communication"] > WAIT / 2
    assert fast["communication"] - slow["communication"] > WAIT / 4
    assert record == same


def test_two_optimizers_stepped_by_hand_are_looked_at(ranks: list[Any]) -> None:
    for _, _, rank in ranks:
        assert rank["steps"] == 2 * 2 * 10  # epochs, optimizers, batches of each process
        assert rank["off"] == [False]
        assert rank["steps_measured"] > 0
        assert rank["step_time"]["communication"] >= 0
