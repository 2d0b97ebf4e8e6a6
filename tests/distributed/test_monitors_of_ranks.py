"""What looks at training never ends it, at several processes neither: with two optimizers that are stepped by hand, and where it
fails in one process only."""

from functools import partial
from pathlib import Path
from typing import Any

import linear_gradients as linear
import pytest
import torch
from fits import become_rank
from lightning import LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from ranks import in_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lockstep.callbacks import LearningRate, Throughput
from lockstep.extras.noise_scale.noise_scale import NoiseScale
from lockstep.extras.profiling.step_time import StepTime
from lockstep.trainer.epoch_loop import shorten_steps

pytestmark = pytest.mark.slow


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
    monitors = [StepTime(every_n_steps=1), LearningRate(), Throughput()]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        **{"accelerator": "cpu", "devices": 2, "max_epochs": 2, "callbacks": monitors, "default_root_dir": folder, **quiet},
        strategy=DDPStrategy(find_unused_parameters=True, process_group_backend="gloo"),
        plugins=[LightningEnvironment()],
    )
    shorten_steps(trainer)
    trainer.fit(Adversaries(), DataLoader(list(torch.ones(40, 2)), batch_size=2))
    return {"steps": trainer.global_step, "off": [monitor.is_off for monitor in monitors], **monitors[0].facts()}


def fail_in_one_process(rank: int, folder: Path) -> tuple[bool, bool, int]:
    """Of a NoiseScale that fails on rank 1 in its third step: is it off, do all know it, and how many estimates has it made?"""
    keep, calls = NoiseScale._own_sums, []

    def fail(self: NoiseScale, *arguments: Any) -> Tensor:
        calls.append(arguments)
        if rank == 1 and len(calls) == 3:
            raise RuntimeError("out of memory, say")
        return keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseScale, "_own_sums", fail)
        scale = linear.fitted(folder, 64, "trainer.devices=2", "datamodule.global_batch_size=8")
    return scale.is_off, scale._is_off_everywhere, scale.smoothed.estimates


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    return {"noise scale": fail_in_one_process(rank, folder / "noise"), "adversaries": train_adversaries(folder / "two")}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(2, partial(check_all, folder=folder), folder)


def test_two_optimizers_stepped_by_hand_are_looked_at(ranks: list[dict[str, Any]]) -> None:
    for rank in (one["adversaries"] for one in ranks):
        assert rank["steps"] == 2 * 2 * 10  # epochs, optimizers, batches of each process
        assert rank["off"] == [False, False, False]
        assert rank["steps_measured"] > 0
        assert rank["step_time"]["communication"] >= 0


def test_a_monitor_that_fails_in_one_process_is_off_in_all(ranks: list[dict[str, Any]]) -> None:
    assert [one["noise scale"] for one in ranks] == [(True, True, 2)] * 2
