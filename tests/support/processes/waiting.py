"""For what other processes do, or threads."""

import threading
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def once(condition: Callable[[], object], act: Callable[..., object], *arguments: object) -> None:
    """Does it from a thread of its own, as soon as that is so, if ever; returns at once."""

    def wait_and_act() -> None:
        wait_for(condition)
        act(*arguments)

    threading.Thread(target=wait_and_act, daemon=True).start()
