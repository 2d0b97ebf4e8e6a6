"""What is imported once for the ranks and jobs of all commands of the tests."""

import contextlib

from lockstep.extras.import_server.server import Imports, give_server

IMPORTS = Imports()

with contextlib.suppress(ImportError):  # it looks for the command line's memory, by the environment that is still there
    from setproctitle import getproctitle

    getproctitle()


def give() -> None:
    """Gives this process, which was forked from the one that has imported them, a server."""
    give_server(IMPORTS)
