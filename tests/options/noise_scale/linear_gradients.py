"""Linear regression, whose gradients are known sample by sample, whatever the weights.

Inputs x are Gaussian with variances C, y = a x + noise; the loss of a sample is the square of e = w x + b - y, with b = 0, its
gradient 2 e (x, 1).
"""

from pathlib import Path
from typing import Any

import torch
from in_process import BARE, prepared
from torch import Tensor

from lockstep.callbacks.noise_scale import NoiseScale
from lockstep.datamodules.batches import InMemory
from lockstep.datamodules.splits import Splits

VARIANCES = torch.tensor([4.0, 1.0, 1.0, 0.25, 0.25, 0.25], dtype=torch.float64)
OFF = torch.tensor([0.5, -0.5, 1.0, 1.0, -1.0, 0.5], dtype=torch.float64)  # w - a, which training leaves as it is
NOISE = 1.0  # its standard deviation


def data(length: int) -> InMemory:
    """With a = 0: where w is OFF, w - a is."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(length, len(OFF), generator=generator, dtype=torch.float64) * VARIANCES.sqrt()
    return InMemory(inputs, NOISE * torch.randn(length, 1, generator=generator, dtype=torch.float64))


def gradients(samples: InMemory, ids: Tensor) -> Tensor:
    """(n, 7): of each of these samples, as the module says."""
    x, y = samples[ids]
    errors = x @ OFF - y[:, 0]
    return 2 * errors[:, None] * torch.cat([x, torch.ones(len(x), 1)], dim=1)


def fitted(folder: Path, length: int, *overrides: str, decay: float = 0.999) -> Any:
    """The callback of a run over `length` samples whose weights stay where they are; it samples every step."""
    scale = NoiseScale(every_n_steps=1, decay=decay)
    options = ("model=linear", "datamodule._target_=synthetic.Vectors", "+datamodule.in_features=6", "+datamodule.out_features=1")
    options += ("trainer.precision=64-true", "model.optimizer.lr=0", "trainer.max_epochs=1", "trainer.limit_val_batches=0")
    datamodule, model, trainer = prepared(folder, *options, *overrides, extra=[scale], base=BARE)
    datamodule._splits = Splits(data(length), None, None)
    with torch.no_grad():
        model.net.layers[-1].weight.copy_(OFF[None])
        model.net.layers[-1].bias.zero_()
    trainer.fit(model, datamodule)
    return scale
