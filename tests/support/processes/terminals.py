"""A terminal of a given size."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


@contextmanager
def terminal(columns: int, lines: int) -> Iterator[tuple[Callable[[], str], TextIO]]:
    """What a person has seen since it was asked last, and the stream that a program writes to; it turns no line's end into two
    characters."""
    seen, written = pty.openpty()
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    attributes = termios.tcgetattr(written)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(written, termios.TCSANOW, attributes)
    with os.fdopen(written, "w", encoding="utf-8") as stream:

        def read() -> str:
            stream.flush()
            parts: list[bytes] = []
            with suppress(BlockingIOError):
                while True:
                    parts.append(os.read(seen, 65536))
            return b"".join(parts).decode()

        os.set_blocking(seen, False)
        yield read, stream
    os.close(seen)
