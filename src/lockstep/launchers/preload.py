"""Modules that the fork server imports before it forks: torch, Lightning, and those of this package that every run needs.

They use no GPU and leave no thread, so that a fork equals a new interpreter after the same imports.
"""

import atexit
import contextlib
import gc
import importlib
import logging
import os
import signal

from lockstep.launchers.processes import set_title
from lockstep.launchers.stop_signals import SIGNALS

MODULES = (
    "lockstep.cli",
    "lockstep.build",
    "lockstep.callbacks",
    "lockstep.datamodules",
    "lockstep.models",
    "lockstep.nets",
    "lockstep.runs.run",
    "lockstep.strategies.ddp",
    "torch._dynamo",  # imported by every optimizer's step
    "torch.utils.tensorboard",
)


def preload() -> None:
    os.setsid()  # the terminal's signals are for the program itself
    # A signal to a whole job would end the server, and its ranks would look dead; each rank unblocks the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    set_title("lockstep fork server")
    handler = logging.NullHandler()
    logging.root.addHandler(handler)  # else Lightning adds a handler of its own
    gc.disable()  # as lockstep.cli.importing_much does
    for name in MODULES:
        with contextlib.suppress(Exception):  # the code that needs the module raises the error
            importlib.import_module(name)
    logging.root.removeHandler(handler)
    gc.freeze()  # collections in a fork skip the imported objects
    gc.enable()
    atexit.register(os._exit, 0)  # finalizing torch takes long


preload()
