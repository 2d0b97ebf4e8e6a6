"""Noise that is the same on any number of processes: drawn for each sample, by its place in the epoch.

In a training step, an evaluation or a prediction, of a LightningModule of any kind:

    z = noise.randn_like(x)                                   # x is (n, ...), a row for each sample of the batch
    other = noise.gather(x)[noise.randperm(len(x))]           # another sample of the global batch, for mixup
    weight = noise.of_batch().beta(0.2, 0.2)                  # one number for the whole batch, from a numpy Generator

Outside of a step the functions draw as torch's do. A step may draw as often as it likes, each time other numbers; what is drawn
within torch.utils.checkpoint is drawn anew when that is computed again, so use lockstep.nets.Dropout there.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional

_STREAM = 100_000  # stream of a step's first draw; lockstep.callbacks.CounterBasedRandomness has those below
_MASK = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = (  # as signed 64-bit integers, which torch has
    constant - (1 << 64) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass
class Step:
    """A batch that is trained on or evaluated.

    Attributes:
        seed, epoch: from which the noise of a sample is drawn, with its place.
        first: the place in the epoch of the batch's first sample, over all processes.
        rank, ranks: this process has every ranks-th sample of the batch, from the rank-th on.
        samples: this process's number of samples in the batch, 0 where it computes on a dummy; None where it is not known.
    """

    seed: int
    epoch: int
    first: int
    rank: int
    ranks: int
    samples: int | None = None
    draws: int = 0
    lengths: list[int] | None = None  # of all processes' shares of the batch

    def places(self, rows: int, device: torch.device) -> Tensor:
        """Return the places of samples, (rows,) int64. Raises ValueError for rows that are no samples."""
        if self.samples and rows != self.samples:
            raise ValueError(f"noise for {rows} rows in a batch of {self.samples} samples: each row must be a sample")
        return torch.arange(rows, device=device) * self.ranks + (self.first + self.rank)

    def next_stream(self) -> int:
        self.draws += 1
        return _STREAM + self.draws

    def exchange_lengths(self, own: int) -> list[int]:
        """Return the lengths of all processes' shares; a collective, once in a step."""
        if self.lengths is None:
            self.lengths = [0 if self.samples == 0 else own] * self.ranks
            if self.ranks > 1:
                dist.all_gather_object(self.lengths, self.lengths[0])
        return self.lengths


class _Now:
    step: Step | None = None


def begin(step: Step | None) -> None:
    """Set the batch that comes next; None: no step is under way. lockstep.callbacks.CounterBasedRandomness does."""
    _Now.step = step


def take_all() -> None:
    """Draw the noise of the whole batch in each process, if each has all of it."""
    if _Now.step is not None:
        _Now.step = replace(_Now.step, rank=0, ranks=1, samples=None)


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
    return drop(x, _keys(_Now.step, x), p)


def randperm(n: int, device: Any = None) -> Tensor:
    """Return the rows of `gather` that take the places of this process's n samples: int64 (n,). Over all processes they are a
    permutation."""
    if _Now.step is None:
        return torch.randperm(n, device=device)
    total = sum(_Now.step.exchange_lengths(n))
    generator = torch.Generator().manual_seed(_batch_seed(_Now.step))
    own = torch.randperm(total, generator=generator)[_Now.step.rank :: _Now.step.ranks][:n]
    return (torch.zeros(n, dtype=torch.int64) if _Now.step.samples == 0 else own).to(device)


def gather(x: Tensor) -> Tensor:
    """Return the global batch's rows, in their order on any number of processes, from each process's x (n, ...); with gradients
    if x has them. A collective."""
    step = _Now.step
    if step is None or step.ranks == 1:
        return x
    lengths = step.exchange_lengths(len(x))
    own, longest = lengths[step.rank], max(lengths)
    padded = torch.cat([x[:own], x.new_zeros(longest - own, *x.shape[1:])]).contiguous()
    rows = torch.stack(all_gather(padded), dim=1)  # (longest, ranks, ...): a rank has every ranks-th sample
    is_sample = torch.arange(longest)[:, None] < torch.tensor(lengths)
    return rows[is_sample.to(x.device)]


def of_batch() -> numpy.random.Generator:
    """Return a generator for numbers that are of the whole batch: in the same state in all processes."""
    return numpy.random.default_rng(None if _Now.step is None else _batch_seed(_Now.step))


def drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    """Zero elements of x (n, ...) with probability p by random integers (n,), and divide the others by 1 - p."""
    bits = _bits(x, keys)
    kept = (bits >= round((p - 0.5) * 2**64)) if p < 1 else torch.zeros_like(bits, dtype=torch.bool)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * (kept * scale).to(x.dtype)


class Dropout(nn.Dropout):
    """torch.nn.Dropout whose mask is counted from (seed, epoch, layer, sample, element).

    `count` tells it the samples of the next batch, which the callback CounterBasedRandomness does in any LightningModule; without
    it, it is torch.nn.Dropout. Used twice in one step, it drops the same elements twice: give each place a layer of its own, or
    call `dropout`.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.keys: Tensor | None = None

    def count(self, keys: Tensor | None) -> None:
        """Set random integers (n,), int64 on the device, one per sample of the batch; see `random_bits`."""
        self.keys = keys

    def forward(self, input: Tensor) -> Tensor:
        """Map (n, ...) to the same shape: elements zeroed with probability p, the others divided by 1 - p."""
        if not self.training or self.p == 0:
            return input
        if self.keys is None:
            return super().forward(input)
        if not len(self.keys):
            return input  # dummy inputs, on a process without a sample: their outputs are not used
        if len(self.keys) != len(input):
            raise ValueError(f"dropout of {len(input)} rows in a batch of {len(self.keys)} samples: the batch must come first")
        return drop(input, self.keys, self.p)


def _uniform(step: Step, x: Tensor, kind: torch.dtype) -> Tensor:
    number = 1 - round(math.log2(torch.finfo(kind).eps))  # bits that a number of this type has
    return _shift(_bits(x, _keys(step, x)), 64 - number).to(kind) * 2.0**-number


def _keys(step: Step, x: Tensor) -> Tensor:
    return random_bits(step.seed, step.epoch, step.places(len(x), x.device), step.next_stream())


def _bits(x: Tensor, keys: Tensor) -> Tensor:
    """Random 64-bit integers of the shape of x (n, ...), from one for each row."""
    if not len(x):
        return torch.empty(x.shape, dtype=torch.int64, device=x.device)
    return mix(keys[:, None] + mix(torch.arange(x[0].numel(), device=x.device))).view(x.shape)


def _batch_seed(step: Step) -> int:
    return derive_seed(step.seed, step.epoch, step.first, step.next_stream())


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
