"""Output on the terminal, and plain text where there is none."""

import contextlib
import io
import os
import select
import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockstep.places import SHIPPED, project

PATIENCE = 5.0  # seconds a pipe may be full, because nobody reads it, before lines are dropped


def survive_lost_output() -> None:
    """Sees to it that nothing that this process prints can end it or hold it up: what is printed to a terminal that has closed,
    a pipe whose reader has gone or sleeps, or a full disk is dropped. The log files in the run's directory have it.

    Streams that are not the process's own, a notebook's say, are left as they are.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            encoding = getattr(stream, "encoding", None)
            setattr(sys, name, _Text(_Output(name, descriptor), encoding, "backslashreplace", line_buffering=True))


class _Output(io.RawIOBase):
    """A file descriptor whose writes always succeed, each within PATIENCE."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name, self._descriptor, self._is_read = f"<{name}>", descriptor, True
        self._writes_to = _not_blocking(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self._has_room():
                rest = rest[os.write(self._writes_to, rest[: select.PIPE_BUF]) :]  # more could block, by POSIX
        except BlockingIOError:  # a terminal with less room than that
            self._is_read = False
        except OSError:  # EPIPE, EIO of a terminal that has closed, ENOSPC, EBADF
            self._let_go()
        return size

    def _has_room(self) -> bool:
        """Waits once; when nobody reads, then not again before somebody does."""
        self._is_read = bool(select.select([], [self._writes_to], [], PATIENCE if self._is_read else 0)[1])
        return self._is_read

    def _let_go(self) -> None:
        """Sends nowhere, too, what is written by C code, by processes started from here, and when Python exits."""
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in {self._descriptor, self._writes_to} - {nowhere}:
                os.dup2(nowhere, descriptor)
            if nowhere != self._descriptor:
                os.close(nowhere)


def _not_blocking(descriptor: int) -> int:
    """A terminal opened anew: the flag on the descriptor itself would be the shell's, too. Others as they are."""
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return descriptor


class _Text(io.TextIOWrapper):
    def close(self) -> None:
        """Flushes, and does not close: others print here too, and would get a ValueError."""
        self.flush()


def say(line: str) -> None:
    """One line for a person who made a mistake or has to know, on standard error; in the place of a progress bar's line."""
    print("\r\x1b[K" * sys.stderr.isatty() + " ".join(line.split()), file=sys.stderr, flush=True)


def show_result(run_dir: Path, result: dict[str, Any]) -> None:
    """Print the closing table, and the commands that come next."""
    rows = {"best epoch": f"{best} of {result['epochs']}"} if (best := result.get("best_epoch")) else {}
    rows |= {name: "not a finite number" if value is None else f"{value:.6g}" for name, value in result["metrics"].items()}
    rows["wall time"] = f"{result['wall_time']:.1f} s"
    if result.get("samples_per_second"):
        rows["throughput"] = f"{result['samples_per_second']:,.0f} samples/s"
    rows |= {"ended by": result["ended_by"]} if result.get("ended_by") else {}
    show_table([*rows.items(), ("run directory", relative(run_dir))])
    if result.get("test_note") and any(name.startswith("test/") for name in result["metrics"]):
        print(result["test_note"], flush=True)
    commands = [f"tensorboard --logdir {shlex.quote(relative(run_dir))}"] if (run_dir / "tensorboard").is_dir() else []
    if result.get("has_test", True) and any(run_dir.glob("checkpoints/*.ckpt")):
        commands.append(command_line("scripts/evaluate.py", run_dir))
    if result["train_time"] and commands:
        print("Next:", *commands, sep="\n  ", flush=True)


def show_preempted(run_dir: Path, reason: str) -> None:
    """Say how to go on."""
    command = command_line("train.py", f"resume={relative(run_dir)}")
    how = f" Continue it: {command}" if (run_dir / ".hydra").is_dir() else ""
    begins = "" if any(run_dir.glob("checkpoints/*.ckpt")) else " No checkpoint was saved: it will begin anew."
    say(f"The run was {reason}.{begins}{how}")


def command_line(script: str, *arguments: str | Path) -> str:
    """Return a command for a shell: `python train.py`, and `lockstep NAME` for scripts. A Path is given from the working
    directory."""
    path = project() / script
    is_program = path.name == "train.py" and not path.is_relative_to(SHIPPED)
    program = ["python", relative(path)] if is_program else ["lockstep", path.stem]
    return shlex.join([*program, *(relative(one) if isinstance(one, Path) else one for one in arguments)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return columns of plain text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def format_duration(seconds: float | None) -> str:
    """Hours, minutes and seconds, 0:02:05 say; empty where they are not known."""
    return "" if seconds is None else str(timedelta(seconds=round(seconds)))


def show_table(rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
    print(aligned([columns, *rows] if columns else rows), flush=True)


def join_first(names: Sequence[object], most: int = 3) -> str:
    """The first few, and how many more there are."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def relative(path: Path) -> str:
    """Return a path as it is typed from the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
