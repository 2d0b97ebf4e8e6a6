"""Output on the terminal, as plain text."""

import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class _Output(io.FileIO):
    """A file descriptor whose writes always succeed. After a failed write it is redirected to /dev/null, for C code and child
    processes too."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:  # EPIPE, EIO of a terminal that has closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def survive_lost_output() -> None:
    """Drop output to a terminal that has closed or a pipe without a reader; the log files in the run's directory have it. Streams
    that were replaced, by a notebook for example, are not changed."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            buffer = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=True))


def say(line: str) -> None:
    """Print one line for the user on standard error; on a terminal it replaces the line of a progress bar."""
    print("\r\x1b[K" * sys.stderr.isatty() + " ".join(line.split()), file=sys.stderr, flush=True)


def show_result(run_dir: Path, result: dict[str, Any]) -> None:
    """Print the table of results and the commands that come next."""
    rows = {"best epoch": f"{best} of {result['epochs']}, whose metrics follow"} if (best := result.get("best_epoch")) else {}
    rows |= {name: "not a finite number" if value is None else f"{value:.6g}" for name, value in result["metrics"].items()}
    rows["wall time"] = f"{result['wall_time']:.1f} s"
    rows |= {"throughput": f"{speed:,.0f} samples/s"} if (speed := result.get("samples_per_second")) else {}
    rows |= {"ended by": reason} if (reason := result.get("ended_by")) else {}
    show_table([*rows.items(), ("run directory", relative(run_dir))])
    has_test = (run_dir / "checkpoints").is_dir() and any(name.startswith("test") for name in result["metrics"])
    show_next(run_dir, *([("lockstep", "evaluate")] if has_test else []))


def show_next(directory: Path, *commands: Sequence[str]) -> None:
    """Print the commands that come next, TensorBoard first, each with the directory as its last argument."""
    if any(path.is_dir() for path in (directory / "tensorboard", *directory.glob("*/tensorboard"))):
        commands = (("tensorboard", "--logdir"), *commands)
    if commands:
        print("Next:", *(command_line(*words, directory) for words in commands), sep="\n  ", flush=True)


def command_line(*words: str | Path) -> str:
    """Return a shell command; paths are relative to the working directory."""
    return shlex.join(relative(word) if isinstance(word, Path) else word for word in words)


def show_table(rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """Print rows as columns of plain text."""
    lines = [columns, *rows] if columns else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip(), flush=True)


def join_first(names: Sequence[object], most: int = 3) -> str:
    """Join the first names, and count the rest."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def relative(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
