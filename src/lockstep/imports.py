"""Importing torch and Lightning in less time."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

_SIGNAL = "scipy.signal"


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Garbage is collected afterwards: importing torch and Lightning makes a million objects that stay, and each collection in
    between looks at all there are, for an eighth of the time that the imports take."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with contextlib.suppress(Exception):  # what can't be imported is a matter of those who need it
            _import_torchmetrics()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _import_torchmetrics() -> None:
    """Without scipy.signal, a second of processor time and 58 MiB, which torchmetrics/__init__.py imports to give it the name
    `hamming` back, for a metric that needs the package gammatone."""
    import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

    if _SIGNAL in sys.modules or find_spec("gammatone") is not None:
        return
    stand_in = ModuleType(_SIGNAL)
    stand_in.__dict__["hamming"] = None
    sys.modules[_SIGNAL] = stand_in
    try:
        import torchmetrics  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        if sys.modules.get(_SIGNAL) is stand_in:
            del sys.modules[_SIGNAL]
