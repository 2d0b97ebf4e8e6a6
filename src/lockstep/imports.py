"""Importing torch and Lightning in less time."""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Files of drivers: NVIDIA's, WSL's and AMD's, one of which is there where torch.cuda finds a GPU.
CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Collects no garbage meanwhile, and looks at what is there then at the process's end alone: importing torch and Lightning
    makes a million objects that stay, and each collection would look at all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            atexit.register(gc.unfreeze)
            gc.enable()
        remove_empty_cache()


def remove_empty_cache() -> None:
    """Removes the folder that importing torch._dynamo makes, in that for temporary files, for what torch will compile: a run that
    is refused leaves nothing. torch makes it again when it writes there (torch/_inductor/runtime/cache_dir_utils.py)."""
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if "torch._dynamo" in sys.modules and folder.name.startswith("torchinductor_"):
        with contextlib.suppress(OSError):  # it is in use
            folder.rmdir()
