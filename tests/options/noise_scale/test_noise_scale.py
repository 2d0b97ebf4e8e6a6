"""The gradient noise scale: against a closed form, step by step against the gradients of samples, and out of the way."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import BARE, KeepAll, logged, prepared, trained
from ranks import in_ranks
from torch import Tensor
from torch.utils.data import TensorDataset

from lockstep.callbacks.noise_scale import NoiseScale
from lockstep.datamodules.base import Splits
from lockstep.runs.results import collect_facts

EVERY = ("callbacks=noise_scale", "callbacks.noise_scale.every_n_steps=1")


# Linear regression, whose gradients are known sample by sample, whatever the weights: inputs x are Gaussian with variances C,
# y = a x + noise; the loss of a sample is the square of e = w x + b - y, with b = 0, its gradient 2 e (x, 1).
VARIANCES = torch.tensor([4.0, 1.0, 1.0, 0.25, 0.25, 0.25], dtype=torch.float64)
OFF = torch.tensor([0.5, -0.5, 1.0, 1.0, -1.0, 0.5], dtype=torch.float64)  # w - a, which training leaves as it is
NOISE = 1.0  # its standard deviation


def data(length: int) -> TensorDataset:
    """With a = 0: where w is OFF, w - a is."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(length, len(OFF), generator=generator, dtype=torch.float64) * VARIANCES.sqrt()
    return TensorDataset(inputs, NOISE * torch.randn(length, 1, generator=generator, dtype=torch.float64))


def gradients(samples: TensorDataset, ids: Tensor) -> Tensor:
    """(n, 7): of each of these samples, as the module says."""
    x, y = samples[ids]
    errors = x @ OFF - y[:, 0]
    return 2 * errors[:, None] * torch.cat([x, torch.ones(len(x), 1)], dim=1)


def fitted(folder: Path, length: int, *overrides: str, decay: float = 0.999) -> Any:
    """The callback of a run over `length` samples whose weights stay where they are; it samples every step."""
    scale = NoiseScale(every_n_steps=1, decay=decay)
    options = ("model=linear", "datamodule=random_regression", "datamodule.in_features=6", "datamodule.out_features=1")
    options += ("trainer.precision=64-true", "model.optimizer.lr=0", "trainer.max_epochs=1", "trainer.limit_val_batches=0")
    datamodule, model, trainer = prepared(folder, *options, *overrides, extra=[scale], base=BARE)
    datamodule.splits = Splits(data(length), None, None)
    with torch.no_grad():
        model.net.layers[-1].weight.copy_(OFF[None])
        model.net.layers[-1].bias.zero_()
    trainer.fit(model, datamodule)
    return scale


def estimate_from(parts: list[Tensor]) -> tuple[float, float]:
    """The unbiased estimates of |G|^2 and tr(Sigma) from parts of a step, (n, 7) each: a one-way analysis of variance."""
    every = torch.cat(parts).mean(dim=0)
    between = sum(len(part) * (part.mean(dim=0) - every).square().sum().item() for part in parts) / (len(parts) - 1)
    return every.square().sum().item() - between / sum(map(len, parts)), between


def check_tail(rank: int, world_size: int, folder: Path) -> None:
    """19 samples in order, in steps of two batches a process; some have none of the last. Micro-batch k is the k-th slice of
    2 * world size samples; rank r has every world-size-th of it, from the r-th on."""
    order = ("datamodule.shuffle=false", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2")
    batches = (f"trainer.devices={world_size}", f"datamodule.global_batch_size={4 * world_size}")
    # decay=0: the running means are those of the last step, of 3 samples
    scale = fitted(folder, 19, *order, *batches, decay=0)
    every = gradients(data(19), torch.arange(19))
    slices = [torch.arange(16, 19)]
    parts = [every[ids] for batch in slices for rank in range(world_size) if len(ids := batch[rank::world_size])]
    assert (scale.gradient, scale.trace) == pytest.approx(estimate_from(parts), rel=1e-9)
    assert scale.estimates == 3


@pytest.mark.slow
def test_an_uneven_tail_of_two_processes_gives_the_estimate_of_its_parts(tmp_path: Path) -> None:
    in_ranks(2, partial(check_tail, folder=tmp_path), tmp_path)


def test_training_is_the_same_to_the_bit_and_goes_on_with_its_estimate(tmp_path: Path) -> None:
    (kept := tmp_path / "run" / "kept").mkdir(parents=True)
    options = ("model=cnn", "model.net.width=4", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2")
    plain, _ = trained(tmp_path / "plain", *options, "trainer.max_epochs=2")
    watched, trainer = trained(tmp_path / "run", *options, *EVERY, "trainer.max_epochs=2", extra=[KeepAll(kept)])
    assert not differences(plain | {"callbacks": None}, watched | {"callbacks": None})
    facts = collect_facts(trainer)
    assert facts["noise_scale_estimates"] == 4  # the third step of an epoch is a single batch
    assert facts["noise_scale"] > 0
    log = logged(tmp_path / "run")
    assert any(name == "noise_scale" for _, name in log)
    again, _ = trained(tmp_path / "run", *options, *EVERY, "trainer.max_epochs=2", ckpt_path=kept / "7.ckpt")
    assert not differences(watched, again)
    assert logged(tmp_path / "run") == log
