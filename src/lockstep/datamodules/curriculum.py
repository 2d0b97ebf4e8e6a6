"""Train on easy samples first, then gradually on harder ones (Bengio et al. 2009, doi:10.1145/1553374.1553380).

A scoring function gives each training sample a score, its difficulty; a pacing function gives the fraction of the easiest samples
that is used at a time. The config names both, so that they can be user-defined.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.datamodules.batches import Batches
from lockstep.errors import config_error

log = logging.getLogger(__name__)
Scores = Callable[[Any], Tensor]  # training split to a score for each sample, (length,); higher is harder
Pacing = Callable[[Tensor], Tensor]  # times from 0 to 1 to the fractions, at most 1, of samples that are used then
_ROUNDING = 1e-6  # difference of a power between processors


class Curriculum:
    """Decide which training samples are used when.

    Args:
        scores: the scoring function; of two samples with equal scores, the earlier one counts as easier.
        pacing: the pacing function; time 0 is the start of training, time 1 is after `epochs`, when all samples are used.
    """

    def __init__(self, scores: Scores, pacing: Pacing, epochs: float) -> None:
        if not epochs > 0:
            raise ValueError(f"epochs={epochs}: is not positive; use a number above 0")
        first = float(pacing(torch.zeros(1, dtype=torch.float64)))
        if not 0 < first <= 1:
            raise ValueError(f"pacing: {first:g} of the samples take part at first; use a pacing.start above 0 and up to 1")
        self.scores, self.pacing, self.epochs = scores, pacing, epochs

    def reorder(self, train: Any) -> "EasiestFirst":
        """Return the function of the order. Raise ConfigError if there is not one score for each sample."""
        scores = torch.as_tensor(self.scores(train))
        if scores.shape != (len(train),):
            needs = f"there are {len(train)} training samples; use a number for each"
            raise config_error("datamodule.curriculum.scores", f"numbers of shape {tuple(scores.shape)}", needs)
        order = EasiestFirst(scores.argsort(stable=True), self.pacing, self.epochs)
        first = int(order.taking_part(0)[0])
        log.info(f"curriculum: the easiest {first} of {len(train)} samples at first, all of them after {self.epochs:g} epochs")
        return order


class EasiestFirst:
    """Map the order of an epoch to an order of the samples in use.

    Each sample is replaced by the one with the same relative rank among the samples in use. How often these occur differs by at
    most one; if all are used, the order is unchanged. A sample that is repeated in an epoch has the same augmentation and
    dropout, which depend on epoch and sample.
    """

    def __init__(self, easiest: Tensor, pacing: Pacing, epochs: float) -> None:
        self.easiest, self.pacing, self.epochs = easiest, pacing, epochs
        self.rank = torch.empty_like(easiest).scatter(0, easiest, torch.arange(len(easiest)))

    def taking_part(self, epoch: int) -> Tensor:
        """Return the number of samples in use at each position of the epoch's order."""
        length = len(self.easiest)
        time = (epoch + torch.arange(length, dtype=torch.float64) / length) / self.epochs
        part = torch.where(time < 1, self.pacing(time.clamp(max=1)), 1.0)
        return (part * length - _ROUNDING).ceil().long().clamp(1, length)

    def __call__(self, order: Tensor, epoch: int) -> Tensor:
        return self.easiest[self.rank[order] * self.taking_part(epoch) // len(order)]


# Pacing functions


def linear(time: Tensor, start: float) -> Tensor:
    """Add equally many samples in each step (Platanios et al. 2019, arXiv:1903.09848)."""
    return start + (1 - start) * time


def root(time: Tensor, start: float, power: float) -> Tensor:
    """Add more samples at first, so that the fraction of new samples stays constant (Platanios et al. 2019)."""
    return (start**power + (1 - start**power) * time) ** (1 / power)


def step(time: Tensor, start: float) -> Tensor:
    """Use the fraction `start` until all samples are used (Bengio et al. 2009; "single step" of Hacohen & Weinshall 2019)."""
    return torch.full_like(time, start)


# Scores


def distance_to_class_mean(train: Any) -> Tensor:
    """Return the distance of each input from the mean of its class; loads all inputs into memory at once."""
    inputs, targets = Batches(train)[range(len(train))]
    features = inputs.flatten(1).double()
    sums = torch.zeros(int(targets.max()) + 1, features.shape[1], dtype=torch.float64).index_add(0, targets, features)
    return (features - (sums / targets.bincount()[:, None])[targets]).norm(dim=1)
