"""Nothing that a process prints decides how it ends, or when, whatever has become of its standard output."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import console


def _broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _closed_terminal() -> int:
    own, other = pty.openpty()
    os.close(own)
    return other


def _closed() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    return writer


@pytest.fixture(params=[_broken_pipe, _closed_terminal, lambda: os.open("/dev/full", os.O_WRONLY), _closed])
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


@pytest.fixture(params=[os.pipe, pty.openpty])
def unread(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The two ends of a pipe or a terminal, which may be full and whose other end may be gone."""
    ends = request.param()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
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


def test_what_can_be_written_is_written_whole(pipe: tuple[int, int]) -> None:
    stream = stream_to(pipe[1])
    print("ä" * 10_000 + "\udc80", end="", file=stream)
    stream.close()  # as third parties do
    print(file=stream, flush=True)
    assert os.read(pipe[0], 65536).decode() == "ä" * 10_000 + "\\udc80\n"


def test_it_is_a_stream_like_any_other(pipe: tuple[int, int]) -> None:
    stream = stream_to(pipe[1])
    assert (stream.fileno(), stream.name, stream.isatty(), stream.encoding) == (pipe[1], "<stdout>", False, "utf-8")
    own, other = pty.openpty()
    assert stream_to(other).isatty()
    os.close(own)
    os.close(other)


def test_a_notebook_s_output_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    its_own = io.StringIO()
    monkeypatch.setattr(sys, "stdout", its_own)
    monkeypatch.setattr(sys, "stderr", its_own)
    console.survive_lost_output()
    assert sys.stdout is sys.stderr is its_own


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


@pytest.mark.parametrize("where", ["| true", "> /dev/full 2>&1", ">&- 2>&- <&-"])
def test_the_exit_code_is_the_program_s_own(where: str, tmp_path: Path) -> None:
    """Python's last flush fails too, which would make it 120; and a file must not become descriptor 1."""
    command = f'"$0" -c "$1" "$2" {where}; exit ${{PIPESTATUS[0]}}'
    ended = subprocess.run(["bash", "-c", command, sys.executable, PRINTS, tmp_path / "file"], capture_output=True, check=False)
    assert ended.returncode == 75
    assert (tmp_path / "file").read_text() == "got through"
    assert b"Error" not in ended.stderr


def test_what_sets_test_apart_from_validation_is_said_with_the_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = {"metrics": {"val/acc": 0.99, "test/acc": 0.97}, "wall_time": 1.0, "world_size": 1, "train_time": 0.0}
    note = "test: other writers"
    console.show_result(tmp_path, result | {"test_note": note})
    assert capsys.readouterr().out.splitlines()[-1] == note
    for said in ({"test_note": None}, {}, {"test_note": note, "metrics": {"val/acc": 0.99}}):
        console.show_result(tmp_path, result | said)
        assert note not in capsys.readouterr().out


@pytest.mark.parametrize(("logged", "said"), [(True, ["Next:", "  tensorboard --logdir ."]), (False, ["Next:"])])
def test_tensorboard_is_named_where_it_has_something_to_show(
    logged: bool, said: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if logged:
        (tmp_path / "tensorboard").mkdir()
    result: dict[str, Any] = {"metrics": {"val/acc": 0.99}, "wall_time": 1.0, "world_size": 1}
    console.show_result(tmp_path, result | {"train_time": 1.0, "samples_per_second": 1.0})
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("Next:") :] == said
