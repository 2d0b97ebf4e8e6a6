"""Imported first, for two reasons: to give sets of strings one order in all processes and resumptions, and to exit with code 75
on a stop request until the run handles it, since nothing has begun."""

import os
import sys

# Python reads the hash seed when it starts. The processes of several runs are forks of one server, so they share its seed.
# "random" is what many container images set.
if os.environ.get("PYTHONHASHSEED", "random") == "random" and "LOCKSTEP_PARENT" not in os.environ and os.name == "posix":
    os.environ["PYTHONHASHSEED"] = "0"
    if sys.executable and sys.gettrace() is None and not {"torch", "hydra", "debugpy"} & sys.modules.keys():  # nothing has begun
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

from lockstep.launchers.stop_signals import STOP_SIGNALS

if "LOCKSTEP_PARENT" not in os.environ:  # in ranks the run has begun
    STOP_SIGNALS.listen()
    STOP_SIGNALS.end_with(75)
