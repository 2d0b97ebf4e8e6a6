"""For what other processes do, or threads."""

import threading
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 120, pause: float = 0.02) -> None:
    """Asks every `pause` seconds; a condition that starts a process, or reads all of /proc, needs a longer one."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def once(condition: Callable[[], object], act: Callable[..., object], *arguments: object) -> None:
    """Call `act(*arguments)` from a thread of its own as soon as `condition()` is true, if ever; return at once."""

    def wait_and_act() -> None:
        wait_for(condition)
        act(*arguments)

    threading.Thread(target=wait_and_act, daemon=True).start()
