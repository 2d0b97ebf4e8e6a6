"""What a process is called in ps, top and nvidia-smi: a fork is otherwise called as what it was forked from."""

import contextlib
import os

_NO_ENVIRONMENT = "SPT_NOENV"  # or setproctitle would write over what /proc/PID/environ shows


def set_title(title: str) -> None:
    """Does nothing where setproctitle is not installed."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle, setthreadtitle

        before = os.environ.get(_NO_ENVIRONMENT)
        os.environ[_NO_ENVIRONMENT] = "1"
        setproctitle(title)
        # The name in /proc/PID/stat has no space: SLURM's proctrack/linuxproc reads that file as words separated by spaces
        # (src/plugins/proctrack/linuxproc/kill_tree.c), and would not find the process when it ends a step.
        setthreadtitle(title.replace(" ", "-"))
        del os.environ[_NO_ENVIRONMENT]
        if before is not None:
            os.environ[_NO_ENVIRONMENT] = before
