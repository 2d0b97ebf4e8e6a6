"""What is imported once for the ranks and jobs of all commands of the tests."""

import contextlib

from lockstep.launchers.warm_server import Imports

IMPORTS = Imports()

with contextlib.suppress(ImportError):  # it looks for the command line's memory, by the environment that is still there
    from setproctitle import getproctitle

    getproctitle()
