"""Page faults of steps that take and free as much memory as the one before."""

import platform
import resource
import subprocess
import sys

import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.extras.kept_memory.events import KeptMemory, keep_freed_memory

STEPS, BLOCKS = 20, (6, 6, 5, 4)  # MiB: as the activations of a small convolutional net


def faults() -> int:
    """Page faults of twenty steps, after one that is not counted."""
    _step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(STEPS):
        _step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _step() -> None:
    blocks = [torch.ones(mib * 2**20, dtype=torch.uint8) for mib in BLOCKS]
    blocks.clear()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
def test_a_step_finds_the_memory_of_the_one_before() -> None:
    """In an interpreter of its own: what lies on top of a heap that others have used may keep malloc from giving it back."""
    ended = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, timeout=120)
    by_default, kept = map(int, ended.stdout.split())
    pages = STEPS * sum(BLOCKS) * 256
    assert by_default > pages // 4
    assert kept < pages // 100


@pytest.mark.parametrize("mib", [-1, 2048, 1.5, True])
def test_what_malloc_does_not_take_is_refused(mib: int) -> None:
    with pytest.raises(ConfigError, match=r"events\.kept_memory\.mib=.* accepted is a whole number from 0 to 2047"):
        KeptMemory(mib)


if __name__ == "__main__":
    before = faults()
    assert keep_freed_memory(1024)
    print(before, faults())
