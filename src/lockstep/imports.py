"""Importing torch and Lightning in less time and memory."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

# Files of drivers: NVIDIA's, WSL's and AMD's, one of which is there where torch.cuda finds a GPU. Triton may serve others, too:
# NVIDIA's that is loaded and was not used yet, a Jetson's, Intel's.
CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
GPUS = (*CUDA_DRIVERS, "/proc/driver/nvidia/version", "/dev/nvmap", "/dev/dri")


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

        with _without_triton():
            with contextlib.suppress(Exception):  # what is wrong with it, Lightning says as it imports it
                _import_torchmetrics()
            yield
    finally:
        if was_enabled:
            gc.enable()
        remove_empty_cache()


def remove_empty_cache() -> None:
    """Importing torch._dynamo makes a folder for what torch will compile, in that for temporary files: a run that is refused
    leaves nothing. torch makes it again when it writes there (torch/_inductor/runtime/cache_dir_utils.py)."""
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if "torch._dynamo" in sys.modules and folder.name.startswith("torchinductor_"):
        with contextlib.suppress(OSError):  # it is in use
            folder.rmdir()


@contextlib.contextmanager
def _without_triton() -> Iterator[None]:
    """Where there is no GPU. torch._dynamo, which Lightning and every optimizer's step import, is then as in torch's builds for
    CPUs, which have no triton, and 66 MiB smaller. None in sys.modules is Python's way to say that there is no such module.
    Looks at the drivers' files only: nothing may ask for a GPU in a process that is to be forked.
    """
    if "triton" in sys.modules or sys.platform != "linux" or any(Path(file).exists() for file in GPUS):
        yield
        return
    modules: dict[str, Any] = sys.modules
    warns = logging.getLogger("torch.utils.flop_counter")  # that operations of triton's kernels will not be counted
    level = warns.level
    modules["triton"] = None
    warns.setLevel(logging.ERROR)
    try:
        yield
    finally:
        warns.setLevel(level)
        del modules["triton"]


@contextlib.contextmanager
def _plots_in_style(*styles: Any) -> Iterator[None]:
    from matplotlib import pyplot

    with pyplot.style.context(*styles):
        yield


# What torchmetrics imports only to have names of it, by the package with which it needs that in earnest: scipy.signal, 58 MiB and
# a second of processor time, to give it the name `hamming` back (torchmetrics/__init__.py), and matplotlib, 27 MiB and half a
# second, for the types in torchmetrics/utilities/plot.py.
_ONLY_NAMED: dict[str, dict[str, dict[str, Any]]] = {
    "gammatone": {"scipy.signal": {"hamming": None}},
    "scienceplots": {
        "matplotlib": {"colors": SimpleNamespace(Colormap=object)},
        "matplotlib.axes": {"Axes": object},
        "matplotlib.pyplot": {"Figure": object, "style": SimpleNamespace(context=_plots_in_style)},
    },
}


def _import_torchmetrics() -> None:
    """Without what it only names; whoever uses that later gets it."""
    stand_ins = {
        name: _StandIn(name, names)
        for needed_by, modules in _ONLY_NAMED.items()
        if find_spec(needed_by) is None and not modules.keys() & sys.modules.keys()
        for name, names in modules.items()
    }
    for name, stand_in in stand_ins.items():
        package, _, own = name.rpartition(".")
        if package in stand_ins:
            setattr(stand_ins[package], own, stand_in)  # as importing it does
    sys.modules.update(stand_ins)
    try:
        import torchmetrics  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        for stand_in in stand_ins.values():
            stand_in.leave()


class _StandIn(ModuleType):
    """Of a module, some of whose names it has; asked for another, it imports the module."""

    def __init__(self, name: str, names: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        self._make_room()
        return getattr(import_module(self.__name__), name)

    def leave(self) -> None:
        """Whoever has kept it finds the module's own names in it from now on."""
        for name in [name for name in self.__dict__ if not name.startswith("__")]:
            del self.__dict__[name]
        self._make_room()

    def _make_room(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
