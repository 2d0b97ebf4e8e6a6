"""A script run in this process as an interpreter started for it would run it; for processes that were forked instead."""

import atexit
import builtins
import contextlib
import signal
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


def run_as_main(arguments: list[str]) -> int:
    """Runs `python ARGUMENTS`, the script first, to its end. Returns the exit code, -SIGINT if an interrupt has ended it."""
    script = str(Path(arguments[0]).absolute())
    sys.argv = arguments
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=builtins, __loader__=SourceFileLoader("__main__", script))
    sys.modules["__main__"] = main
    code = 0
    try:
        exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as left:
        code = _exit_code(left.code)
    except BaseException as error:
        show_uncaught(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  as multiprocessing does it: waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def show_uncaught(error: BaseException) -> None:
    """Prints the traceback as an interpreter does, from the script on."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _exit_code(left: Any) -> int:
    if left is None or isinstance(left, int):
        return left or 0
    print(left, file=sys.stderr)
    return 1
