"""Importing torch and Lightning in less time."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_SIGNAL = "scipy.signal"


@contextlib.contextmanager
def importing_much() -> Iterator[None]:
    """Garbage is collected afterwards: importing torch and Lightning makes a million objects that stay, and each collection in
    between looks at all there are, for an eighth of the time that the imports take.

    Raises ImportError where torch can't be imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

        with contextlib.suppress(Exception):  # what is wrong with it, Lightning says as it imports it
            _import_torchmetrics()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _import_torchmetrics() -> None:
    """Without scipy.signal, a second of processor time and 58 MiB, which torchmetrics/__init__.py imports to give it the name
    `hamming` back, for a metric that needs the package gammatone."""
    if _SIGNAL in sys.modules or find_spec("gammatone") is not None:
        return
    stand_in = _StandIn(_SIGNAL)
    stand_in.__dict__["hamming"] = None
    sys.modules[_SIGNAL] = stand_in
    try:
        import torchmetrics  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        del stand_in.__dict__["hamming"]
        if sys.modules.get(_SIGNAL) is stand_in:
            del sys.modules[_SIGNAL]


class _StandIn(ModuleType):
    """Of a module, which it imports for whoever asks it for something."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
