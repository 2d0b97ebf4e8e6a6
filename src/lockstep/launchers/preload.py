"""Imported by the fork server before it forks: torch, Lightning, and what every run needs of this package.

No GPU is touched and no thread is left, so that a fork is what a fresh interpreter is after the same imports.
"""

import atexit
import contextlib
import gc
import importlib
import logging
import os
import signal

from lockstep.launchers.processes import PRELOAD, set_title

MODULES = (
    "lockstep.cli",
    "lockstep.build",
    "lockstep.callbacks",
    "lockstep.datamodules",
    "lockstep.models",
    "lockstep.nets",
    "lockstep.runs.results",
    "lockstep.runs.run",
    "lockstep.trainer.strategies",
    "torch._dynamo",  # by every optimizer's step
    "torch.utils.serialization",
    "torch.utils.tensorboard",
    "tensorboard.plugins.hparams.metadata",
    *(f"PIL.{name}ImagePlugin" for name in ("Bmp", "Gif", "Jpeg", "Png", "Ppm")),  # which pillow imports for each PNG
)


def preload() -> None:
    os.setsid()  # what a terminal sends is for the program itself
    # One that is sent to a whole job would end the server, and living ranks would look dead; a rank unblocks them when it begins.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
    set_title("lockstep fork server")
    handler = logging.NullHandler()
    logging.root.addHandler(handler)  # else Lightning adds a handler of its own
    gc.disable()
    for name in (*MODULES, *os.environ.pop(PRELOAD, "").split()):
        with contextlib.suppress(Exception):  # who needs it says why it can't be imported
            importlib.import_module(name)
    logging.root.removeHandler(handler)
    gc.freeze()  # no collection in a fork goes through what was imported
    gc.enable()
    atexit.register(os._exit, 0)  # torch takes long to be taken apart


preload()
