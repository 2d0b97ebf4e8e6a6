"""Noise that is the same on any number of processes: drawn for each sample, by its place in the epoch.

In a training step, an evaluation or a prediction, of a LightningModule of any kind:

    z = noise.randn_like(x)                                   # x is (n, ...), a row for each sample of the batch
    other = noise.gather(x)[noise.randperm(len(x))]           # another sample of the global batch, for mixup
    weight = noise.of_batch().beta(0.2, 0.2)                  # one number for the whole batch, from a numpy Generator

Outside of a step the functions draw as torch's do. Each call in a step draws other numbers, also when torch.utils.checkpoint
computes a part again, so use lockstep.nets.Dropout there.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional

# Streams of random numbers: augmentation has those from 0 on, layers of dropout follow, then the draws of a step.
FIRST_LAYER = 1000
_FIRST_DRAW = 100_000
_MASK = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = (  # as signed 64-bit integers, which torch has
    constant - (1 << 64) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass
class Step:
    """A batch that is trained on or evaluated.

    Attributes:
        seed, epoch: seeds of the noise, beside a sample's place in the epoch.
        first: place of the batch's first sample.
        rank, ranks: this process has every ranks-th sample of the batch, from the rank-th on.
        size: number of samples of the batch over all processes; None if it is unknown, as for a stream.
    """

    seed: int
    epoch: int
    first: int
    rank: int
    ranks: int
    size: int | None = None
    draws: int = 0

    def samples(self, rows: int) -> tuple[int, int]:
        """Return the number of samples of this process and of all; if it is unknown, all have as many `rows` as this one."""
        size = rows * self.ranks if self.size is None else self.size
        return len(range(self.rank, size, self.ranks)), size

    def keys(self, x: Tensor, stream: int) -> Tensor:
        """Return a random integer for each row of x (n, ...), int64 (n,). Raises ValueError for rows that are no samples."""
        own, _ = self.samples(len(x))
        if own not in (0, len(x)):  # without a sample this process computes on a dummy
            raise ValueError(f"noise for {len(x)} rows in a batch of {own} samples: each row must be a sample")
        places = torch.arange(len(x), device=x.device) * self.ranks + (self.first + self.rank)
        return random_bits(self.seed, self.epoch, places, stream)

    def next_stream(self) -> int:
        self.draws += 1
        return _FIRST_DRAW + self.draws

    def batch_seed(self) -> int:
        return derive_seed(self.seed, self.epoch, self.first, self.next_stream())

    def part(self, rows: slice) -> "Step":
        """Return the step of some consecutive rows of this process's samples."""
        size = None if self.size is None else (rows.stop - rows.start) * self.ranks
        return replace(self, first=self.first + rows.start * self.ranks, size=size)


class _Now:
    step: Step | None = None


def step() -> Step | None:
    return _Now.step


def begin(step: Step | None) -> None:
    """Set the batch that comes next; None after the last. lockstep.callbacks.CounterBasedRandomness calls this."""
    _Now.step = step


def rand_like(x: Tensor) -> Tensor:
    """Uniform numbers from 0 to 1, less than 1, of the shape and type of x (n, ...)."""
    return torch.rand_like(x) if _Now.step is None else _uniform(_Now.step, x, x.dtype)


def randn_like(x: Tensor) -> Tensor:
    """Normal numbers of the shape and type of x (n, ...), by Box and Muller 1958, doi:10.1214/aoms/1177706645."""
    if _Now.step is None:
        return torch.randn_like(x)
    kind = torch.promote_types(x.dtype, torch.float32)
    radius, angle = _uniform(_Now.step, x, kind), _uniform(_Now.step, x, kind)
    return (torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * torch.pi * angle)).to(x.dtype)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """torch.nn.functional.dropout of x (n, ...)."""
    if _Now.step is None or not training or p == 0:
        return functional.dropout(x, p, training)
    return _drop(x, _Now.step.keys(x, _Now.step.next_stream()), p)


def randperm(n: int, device: Any = None) -> Tensor:
    """Return the rows of `gather` that take the places of this process's n samples: int64 (n,). Over all processes they are a
    permutation."""
    if (step := _Now.step) is None:
        return torch.randperm(n, device=device)
    generator = torch.Generator().manual_seed(step.batch_seed())
    own = torch.randperm(step.samples(n)[1], generator=generator)[step.rank :: step.ranks]
    return (own if len(own) else torch.zeros(n, dtype=torch.int64)).to(device)  # a dummy takes the first row


def gather(x: Tensor) -> Tensor:
    """Return the global batch's rows, in their order on any number of processes, from each process's x (n, ...); with gradients
    if x has them. A collective. Processes that read streams must have equally many rows."""
    step = _Now.step
    if step is None or step.ranks == 1:
        return x
    own, size = step.samples(len(x))
    longest = -(-size // step.ranks)  # the samples of rank 0
    padded = torch.cat([x[:own], x.new_zeros(longest - own, *x.shape[1:])]).contiguous()
    rows = torch.stack(all_gather(padded), dim=1)  # (longest, ranks, ...): a rank has every ranks-th sample
    return rows.flatten(0, 1)[:size]


def of_batch() -> numpy.random.Generator:
    """Return a generator for numbers that are of the whole batch: in the same state in all processes."""
    return numpy.random.default_rng(None if _Now.step is None else _Now.step.batch_seed())


class Dropout(nn.Dropout):
    """torch.nn.Dropout whose mask is counted from (seed, epoch, layer, sample, element).

    The callback CounterBasedRandomness numbers a model's layers; without it, and for batches of unknown size, this is
    torch.nn.Dropout. A layer that is used twice in a step drops the same elements twice: use two layers, or `dropout`.
    """

    stream: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map (n, ...) to the same shape: elements zeroed with probability p, the others divided by 1 - p."""
        step = _Now.step
        if not self.training or self.p == 0 or self.stream is None or step is None or step.size is None:
            return super().forward(input)
        return _drop(input, step.keys(input, self.stream), self.p)


def _drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    bits = _bits(x, keys)
    is_kept = (bits >= round((p - 0.5) * 2**64)) if p < 1 else torch.zeros_like(bits, dtype=torch.bool)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * (is_kept * scale).to(x.dtype)


def _uniform(step: Step, x: Tensor, kind: torch.dtype) -> Tensor:
    number = 1 - round(math.log2(torch.finfo(kind).eps))  # bits that a number of this type has
    return _shift(_bits(x, step.keys(x, step.next_stream())), 64 - number).to(kind) * 2.0**-number


def _bits(x: Tensor, keys: Tensor) -> Tensor:
    """Random 64-bit integers of the shape of x (n, ...), from one for each row."""
    if not len(x):
        return torch.empty(x.shape, dtype=torch.int64, device=x.device)
    return mix(keys[:, None] + mix(torch.arange(x[0].numel(), device=x.device))).view(x.shape)


# Random numbers counted from what they are for, without a state that is carried from call to call.


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's shift of signed integers fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """The SplitMix64 finalizer (Steele et al. 2014, doi:10.1145/2714064.2660195), int64 to int64, element-wise."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def random_bits(seed: int, epoch: int, ids: Tensor, stream: int) -> Tensor:
    """One uniform 63-bit integer per sample id, int64 of the shape of ids; another stream gives other numbers."""
    key = mix(mix(torch.tensor(seed)) + epoch)
    return _shift(mix(mix(ids.long() + key) + stream), 1)


def derive_seed(*counters: int) -> int:
    """A 63-bit seed for torch.manual_seed from a few counters, (seed, step, rank) say; the same mixing, without tensors."""
    state = 0
    for counter in counters:
        state = (state + counter + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
