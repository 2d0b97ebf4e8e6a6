"""Ends the servers that `warm=true` has left, or lists them:  python scripts/warm.py stop|list

What was forked from one goes on.
"""

import contextlib
import os
import signal

from lockstep.__main__ import script_parser
from lockstep.extras.warm import client


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("what", choices=("stop", "list"))
    is_stop = parser.parse_args().what == "stop"
    servers = list(client.servers())
    for pid, path in servers:
        print(f"{'ended' if is_stop else 'running'}: {pid}")
        if is_stop:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            path.unlink(missing_ok=True)
    if not servers:
        print("There is no server.")


if __name__ == "__main__":
    main()
