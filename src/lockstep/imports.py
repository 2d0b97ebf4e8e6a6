"""Importing torch and Lightning in less time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Garbage is collected afterwards: importing torch and Lightning makes a million objects that stay, and each collection in
    between looks at all there are, for an eighth of the time that the imports take."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
