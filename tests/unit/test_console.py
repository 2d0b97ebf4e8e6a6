"""Nothing that a process prints decides how it ends, or when, whatever has become of its standard output."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep import console


def _broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _closed() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    return writer


@pytest.fixture(params=[_broken_pipe, _closed])
def lost(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor to which nothing can be written, each for another reason."""
    descriptor = request.param()
    yield descriptor
    os.close(descriptor)


def stream_to(descriptor: int) -> console._Text:
    return console._Text(console._Output("stdout", descriptor), "utf-8", "backslashreplace", line_buffering=True)


def test_output_that_is_lost_is_let_go(lost: int) -> None:
    stream = stream_to(lost)
    for _ in range(3):
        print("to nobody" * 10_000, file=stream)
    os.write(lost, b"by C code, and by a process started from here")
    assert os.get_inheritable(lost)


@pytest.fixture(params=[os.pipe])
def unread(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The two ends of a pipe or a terminal, which may be full and whose other end may be gone."""
    ends = request.param()
    yield ends
    for end in ends:
        os.close(end)


def test_what_nobody_reads_holds_it_up_once(unread: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE", 0.2)
    stream, began = stream_to(unread[1]), time.monotonic()
    for _ in range(1000):
        print("x" * 1000, file=stream)
    assert time.monotonic() - began < 2
    os.set_blocking(unread[0], False)
    with contextlib.suppress(BlockingIOError):
        while os.read(unread[0], 65536):
            pass
    print("read again", file=stream)
    assert os.read(unread[0], 65536).rstrip().endswith(b"read again")


PRINTS = """
import sys
from pathlib import Path
from typing import Any
from lockstep import console
console.survive_lost_output()
with Path(sys.argv[1]).open("w") as file:
    print("printed", "x" * 100_000)
    print("without an end of line", end="")
    print("to the other", file=sys.stderr, end="")
    file.write("got through")
raise SystemExit(75)
"""


@pytest.mark.parametrize("where", ["| true", ">&- 2>&- <&-"])
def test_the_exit_code_is_the_program_s_own(where: str, tmp_path: Path) -> None:
    """Python's last flush fails too, which would make it 120; and a file must not become descriptor 1."""
    command = f'"$0" -c "$1" "$2" {where}; exit ${{PIPESTATUS[0]}}'
    ended = subprocess.run(["bash", "-c", command, sys.executable, PRINTS, tmp_path / "file"], capture_output=True, check=False)
    assert ended.returncode == 75
    assert (tmp_path / "file").read_text() == "got through"
    assert b"Error" not in ended.stderr
