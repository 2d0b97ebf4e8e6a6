"""What is drawn in training does not depend on what was drawn before."""

import random
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from lightning import LightningModule

from lockstep.callbacks import CounterBasedRandomness
from lockstep.nets import MLP, Dropout
from lockstep.noise import random_bits


def test_noise_is_a_function_of_seed_epoch_batch_and_rank() -> None:
    def draws(seed: int, epoch: int, batch: int, rank: int) -> tuple[float, float, float]:
        trainer: Any = SimpleNamespace(current_epoch=epoch, distributed_sampler_kwargs={"rank": rank, "num_replicas": 2})
        CounterBasedRandomness(seed).on_train_batch_start(trainer, LightningModule(), None, batch)
        return torch.rand(()).item(), numpy.random.rand(), random.random()

    keys = [(seed, epoch, batch, rank) for seed in (0, 1) for epoch in (0, 1) for batch in (0, 1, 2) for rank in (0, 1)]
    first = [draws(*key) for key in keys]
    for generator in zip(*first, strict=True):
        assert len(set(generator)) == len(keys)
    assert [draws(*key) for key in reversed(keys)] == first[::-1]


def test_dropout_is_told_the_samples_in_any_module() -> None:
    module = LightningModule()
    place = SimpleNamespace(epoch_progress=SimpleNamespace(current=SimpleNamespace(started=3, completed=3)))
    share = {"rank": 1, "num_replicas": 2}
    sampler = SimpleNamespace(global_batch_size=4, samples_per_epoch=20)
    module.net = MLP((4,), 2, [5, 5], dropout=0.5)
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout)]
    for loaders, places in (([], None), ([SimpleNamespace(sampler=sampler)], torch.tensor([5, 7]))):  # of the second batch
        trainer: Any = SimpleNamespace(
            current_epoch=3, distributed_sampler_kwargs=share, train_dataloader=loaders, fit_loop=place
        )
        randomness = CounterBasedRandomness(seed=7)
        randomness.on_train_start(trainer, module)
        randomness.on_train_batch_start(trainer, module, None, 1)
        for number, layer in enumerate(layers):
            expected = None if places is None else random_bits(7, 3, places, 1000 + number)
            assert (layer.keys is None) if expected is None else torch.equal(layer.keys, expected)
    assert len(layers) == 2
