"""What a process is called in ps, top and nvidia-smi: a fork is otherwise called as what it was forked from."""

import contextlib
import os

_NO_ENVIRONMENT = "SPT_NOENV"  # or setproctitle would write over what /proc/PID/environ shows


def set_title(title: str) -> None:
    """Does nothing where setproctitle is not installed."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        before = os.environ.get(_NO_ENVIRONMENT)
        os.environ[_NO_ENVIRONMENT] = "1"
        setproctitle(title)
        del os.environ[_NO_ENVIRONMENT]
        if before is not None:
            os.environ[_NO_ENVIRONMENT] = before
