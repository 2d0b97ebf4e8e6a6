"""The checkpoint to continue from is the latest state, whatever the best one is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer

from lockstep.callbacks import CountedRandomness, LastCheckpoint


class Saves(Trainer):
    """A trainer that only notes when it is asked to save."""

    def __init__(self) -> None:
        self.epoch, self.steps, self.saved = 0, 0, list[int]()

    @property
    def current_epoch(self) -> int:
        return self.epoch

    @property
    def global_step(self) -> int:
        return self.steps

    def save_checkpoint(self, filepath: object, *_: object, **__: object) -> None:
        assert str(filepath).endswith("last.ckpt")
        self.saved.append(self.steps)


@pytest.mark.parametrize(
    ("epochs", "every", "saved"),
    [
        (50, 10, [10, 20, 30, 40, 50]),  # multigpu.py 50 10 of the DDP tutorial, at one step an epoch
        (25, 10, [10, 20, 25]),  # nothing that was trained is lost
        (3, 1, [1, 2, 3]),
    ],
)
def test_saved_every_n_epochs_and_at_the_end(epochs: int, every: int, saved: list[int], tmp_path: Path) -> None:
    trainer, module, callback = Saves(), LightningModule(), LastCheckpoint(str(tmp_path), every_n_epochs=every)
    for epoch in range(epochs):
        trainer.epoch, trainer.steps = epoch, epoch + 1
        callback.on_train_epoch_end(trainer, module)
    callback.on_train_end(trainer, module)
    assert trainer.saved == saved


def test_counted_randomness_is_a_function_of_seed_batch_and_rank() -> None:
    def draws(seed: int, batch: int, rank: int) -> float:
        trainer: Any = SimpleNamespace(fit_loop=SimpleNamespace(total_batch_idx=batch), global_rank=rank)
        CountedRandomness(seed).on_train_batch_start(trainer, LightningModule(), None, 0)
        return torch.rand(()).item()

    keys = [(seed, batch, rank) for seed in (0, 1) for batch in (0, 1, 2) for rank in (0, 1)]
    first = [draws(*key) for key in keys]
    assert len(set(first)) == len(keys)
    assert [draws(*key) for key in reversed(keys)] == first[::-1]
