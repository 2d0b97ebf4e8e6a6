"""Output on the terminal, as plain text."""

import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.places import SHIPPED, project


class _Output(io.FileIO):
    """A file descriptor whose writes always succeed. After a failed write it is redirected to /dev/null, for C code and child
    processes too."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:  # EPIPE, EIO of a terminal that has closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
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
    """Print why the run has stopped and the command that resumes it."""
    command = command_line("train.py", f"resume={relative(run_dir)}")
    how = f" Continue it: {command}" if (run_dir / ".hydra").is_dir() else ""
    begins = "" if any(run_dir.glob("checkpoints/*.ckpt")) else " No checkpoint was saved: it will begin anew."
    say(f"The run was {reason}.{begins}{how}")


def command_line(script: str, *arguments: str | Path) -> str:
    """Return a shell command, `python train.py` or `lockstep NAME` for scripts; paths are relative to the working directory."""
    path = project() / script
    is_program = path.name == "train.py" and not path.is_relative_to(SHIPPED)
    program = ["python", relative(path)] if is_program else ["lockstep", path.stem]
    return shlex.join([*program, *(relative(one) if isinstance(one, Path) else one for one in arguments)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as columns of plain text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show_table(rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
    print(aligned([columns, *rows] if columns else rows), flush=True)


def join_first(names: Sequence[object], most: int = 3) -> str:
    """Join the first names, and count the rest."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def relative(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
