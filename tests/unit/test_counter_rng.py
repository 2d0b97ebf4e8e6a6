"""Random numbers counted from what they are for."""

from itertools import product

import pytest
import torch

from lockstep.noise import derive_seed, mix, random_bits

GAMMA = 0x9E3779B97F4A7C15
# The first outputs of SplitMix64 for the state 1234567, as published with its C code and in Rosetta Code.
REFERENCE = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def signed(x: int) -> int:
    x %= 2**64
    return x - 2**64 if x >= 2**63 else x


def splitmix(state: int) -> int:
    """The generator's output after `state`, in Python's integers."""
    z = (state + GAMMA) % 2**64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def test_mix_is_splitmix64() -> None:
    states = torch.tensor([signed(1234567 + k * GAMMA) for k in range(5)])  # the generator adds GAMMA before each output
    assert [value % 2**64 for value in mix(states).tolist()] == REFERENCE
    assert [splitmix(1234567 + k * GAMMA) for k in range(5)] == REFERENCE  # and so is this file's own


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, 0), (7, 3, 2), (2**32 - 1, 1000, 1)])
def test_draw_is_seed_epoch_id_and_purpose_mixed_in_turn(seed: int, epoch: int, stream: int) -> None:
    ids = [0, 1, 2, 59_999]
    key = splitmix((splitmix(seed) + epoch) % 2**64)
    expected = [splitmix((splitmix((i + key) % 2**64) + stream) % 2**64) >> 1 for i in ids]
    assert random_bits(seed, epoch, torch.tensor(ids), stream).tolist() == expected


def test_seeds_are_the_same_each_time_and_differ_for_every_combination() -> None:
    combinations = list(product(range(5), range(100), range(8)))  # seed, step, rank
    seeds = [derive_seed(*counters) for counters in combinations]
    assert seeds == [derive_seed(*counters) for counters in combinations]
    assert len(set(seeds)) == len(combinations) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_order_and_number_of_counters_matter() -> None:
    counters = [(1, 2), (2, 1), (1,), (2,), (1, 2, 0), (3,), (0, 3)]
    assert len({derive_seed(*one) for one in counters}) == 7
    assert derive_seed(1234567) == REFERENCE[0] >> 1
