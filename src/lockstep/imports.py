"""Importing torch and Lightning in less time."""

import atexit
import contextlib
import gc
from collections.abc import Iterator

# Files of drivers: NVIDIA's, WSL's and AMD's, one of which is there where torch.cuda finds a GPU.
CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage meanwhile, and exempt the imported objects until the process ends: importing torch and Lightning makes a
    million objects that stay, and each collection would look at all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            atexit.register(gc.unfreeze)
            gc.enable()
