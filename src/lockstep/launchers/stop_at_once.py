"""Imported first: until a run handles requests to stop, one ends the process with code 75, for nothing has begun."""

import os
import signal

from lockstep.launchers.stop_signals import SIGNALS, STOP_SIGNALS

if "LOCKSTEP_PARENT" not in os.environ:  # in a rank the run has begun
    STOP_SIGNALS.listen(signals={*SIGNALS} - {signal.SIGINT})  # Ctrl-C stays Python's
    STOP_SIGNALS.end_with(75, b"Stopped before anything had begun. The same command starts it.\n")
