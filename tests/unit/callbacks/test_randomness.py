"""What is drawn in training does not depend on what was drawn before."""

import random
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from lightning import LightningModule

from lockstep.callbacks import CounterBasedRandomness


def test_noise_is_a_function_of_seed_epoch_batch_and_rank() -> None:
    def draws(seed: int, epoch: int, batch: int, rank: int) -> tuple[float, float, float]:
        trainer: Any = SimpleNamespace(
            current_epoch=epoch,
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            distributed_sampler_kwargs={"rank": rank, "num_replicas": 2},
        )
        CounterBasedRandomness(seed).on_train_batch_start(trainer, LightningModule(), None, batch)
        return torch.rand(()).item(), numpy.random.rand(), random.random()

    keys = [(seed, epoch, batch, rank) for seed in (0, 1) for epoch in (0, 1) for batch in (0, 1, 2) for rank in (0, 1)]
    first = [draws(*key) for key in keys]
    for generator in zip(*first, strict=True):
        assert len(set(generator)) == len(keys)
    assert [draws(*key) for key in reversed(keys)] == first[::-1]
