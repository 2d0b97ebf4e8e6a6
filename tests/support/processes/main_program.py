"""A script in a process that was forked, as if it had been started with it: of programs that measure, and of tests."""

import atexit
import contextlib
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path


def run_as_main(arguments: list[str]) -> int:
    """Runs `python ARGUMENTS`, the script first, to its end. Returns the exit code, -SIGINT if an interrupt has ended it."""
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exception(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  as multiprocessing does it: waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code
