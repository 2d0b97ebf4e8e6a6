"""Random numbers counted from what they are for, without a state that is carried from call to call."""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = (  # as signed 64-bit integers, which torch has
    constant - (1 << 64) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


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
