"""Imported first: sets of strings have one order in all processes and resumptions; and until a run handles requests to stop, one
ends the process with code 75, for nothing has begun."""

import os
import sys

# Python reads the hash seed when it starts. Processes of several runs are forks of one server: they can't have one of their own.
if "PYTHONHASHSEED" not in os.environ and "LOCKSTEP_PARENT" not in os.environ and os.name == "posix":
    os.environ["PYTHONHASHSEED"] = "0"
    if sys.executable and sys.gettrace() is None and not {"torch", "debugpy"} & sys.modules.keys():  # nothing has begun
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

from lockstep.launchers.stop_signals import STOP_SIGNALS

if "LOCKSTEP_PARENT" not in os.environ:  # in a rank the run has begun
    STOP_SIGNALS.listen()
    STOP_SIGNALS.end_with(75)
