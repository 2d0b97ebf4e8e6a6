"""Where in its code a process waits, found out from outside: it answers a signal by writing its stack. Imports no torch."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_LIBRARIES = ("site-packages", f"{os.sep}lockstep{os.sep}parity{os.sep}")


def where_it_waits(pid: int, stack: Path) -> str:
    """FILE:LINE in FUNCTION, of the innermost frame that is no library's; "" where the process does not answer."""
    before = stack.stat().st_size if stack.exists() else 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
    for _ in range(50):
        time.sleep(0.02)
        if stack.exists() and stack.stat().st_size > before:
            return innermost(stack.read_text()[before:])
    return "which does not answer"


def innermost(stacks: str) -> str:
    """Of what faulthandler writes about all threads: the one that trains, innermost frame first."""
    threads = [thread for thread in stacks.split("\n\n") if f"{os.sep}parity{os.sep}observe.py" in thread]
    frames = [match.groupdict() for match in _FRAME.finditer(threads[0])] if threads else []
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    standard = str(Path(os.__file__).parent)
    own = [frame for frame in own if not frame["file"].startswith((standard, "<"))]
    waits = [f"waits in {frame['file']}:{frame['line']}, in {frame['function']}" for frame in own or frames]
    return waits[0] if waits else "not in its training"
