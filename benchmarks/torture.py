"""Bad command lines by the hundred, made from the composed config: each must end with one line, code 2 and nothing left.

    python benchmarks/torture.py                         # all of them, as a Markdown table
    python benchmarks/torture.py --only trainer. typed:  # those of that kind, or with such a text in them
    python benchmarks/torture.py --every 20              # each twentieth
    python benchmarks/torture.py --list

For every key of every group: values of another type, out of range, null, and unknown keys below it; then what people have
typed, keys that do not go together, sizes that no machine has, the scripts' own arguments, and what is left in the environment.
What is right all the same must train. The command lines run in forks of a process that has imported torch and Lightning, some
in interpreters of their own, each in a folder of its own that holds an earlier run, data and the place for temporary files:
nothing may be left in it. Exit code 1 if one was not as it must be.
"""

import argparse
import atexit
import contextlib
import hashlib
import importlib
import os
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bad_command_lines import SHORT, Line, lines
from main_program import run_as_main
from omegaconf import OmegaConf

from lockstep.errors import ExitCode
from lockstep.runs.composition import compose
from lockstep.runs.record import environment

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 240  # that one command line may take
PRELOADED = ("lockstep.cli", "lockstep.build", "lockstep.runs.results", "torch.utils.tensorboard")


@dataclass(frozen=True)
class Running:
    line: Line
    pid: int
    folder: Path
    before: dict[str, str]
    began: float  # time.monotonic


@dataclass(frozen=True)
class Result:
    line: Line
    said: str
    problem: str | None


def run_all(todo: Sequence[Line], jobs: int, on_result: Callable[[Result], None]) -> list[Result]:
    """In forks of this process, `jobs` at a time."""
    for module in PRELOADED:
        importlib.import_module(module)
    waiting, running, results = list(todo)[::-1], list[Running](), list[Result]()
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        scratch = Path(name)
        _save_checkpoints(scratch)
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(), scratch, scratch / str(len(waiting))))
            time.sleep(0.02)
            for one in list(running):
                if (result := _ended(one)) is not None:
                    running.remove(one)
                    results.append(result)
                    on_result(result)
    return results


def _save_checkpoints(folder: Path) -> None:
    """Of the shipped model: of another optimizer, and of a later epoch."""
    import torch

    from lockstep.models.from_config import build_model

    model: Any = OmegaConf.to_container(compose(*SHORT).model, resolve=True)
    spec = {"input_shape": [1, 8, 8], "num_outputs": 10, "class_names": None}
    state = {"state_dict": build_model({"model": model, "spec": spec}).state_dict(), "global_step": 1}
    torch.save(state | {"epoch": 9, "hyper_parameters": {"model": model}}, folder / "later.ckpt")
    other = model | {"optimizer": model["optimizer"] | {"_target_": "torch.optim.SGD"}}
    torch.save(state | {"epoch": 1, "hyper_parameters": {"model": other}}, folder / "sgd.ckpt")


def _start(line: Line, scratch: Path, folder: Path) -> Running:
    _furnish(folder, scratch)
    before = _content(folder)
    pid = os.fork()
    if not pid:
        os._exit(_command_line(line, folder))
    return Running(line, pid, folder, before, time.monotonic())


def _furnish(folder: Path, scratch: Path) -> None:
    """An earlier run, two checkpoints, three classes of pictures, one of them damaged in a copy, directories of runs whose files
    are none, and a folder for temporary files."""
    from PIL import Image

    run = folder / "logs" / "torture" / "earlier"
    run.mkdir(parents=True)
    (run / "status.json").write_text('{"status": "finished"}')
    for path in scratch.glob("*.ckpt"):
        os.link(path, folder / path.name)
    for name in "abc":
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(folder / "pictures" / name / f"{number}.png")
    shutil.copytree(folder / "pictures", folder / "damaged")
    (folder / "damaged" / "c" / "7.png").write_bytes(b"no picture")
    for name in ("pipe", "folders"):
        (folder / "odd" / name / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "status.json"):
        os.mkfifo(folder / "odd" / "pipe" / name)
    for name in ("train.log", "checkpoints/last.ckpt"):
        (folder / "odd" / "folders" / name).mkdir()
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text("{}")
    (folder / "llama" / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (folder / "tmp").mkdir()


def _content(folder: Path) -> dict[str, str]:
    paths = sorted(folder.rglob("*"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in paths}


def _command_line(line: Line, folder: Path) -> int:
    """In the fork: as if the script had been started with it. Returns the exit code."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update({name: value for name, _, value in (item.partition("=") for item in line.environment)})
    os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by importing torch
    command = [str(ROOT / line.script), *line.arguments]
    if line.is_fresh:
        os.execv(sys.executable, [sys.executable, *command])
    atexit._clear()  # what this program does at its end
    return run_as_main(command) & 0xFF


def _ended(one: Running) -> Result | None:
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    if not pid and time.monotonic() - one.began < SECONDS:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)
    if not pid:
        _, status = os.waitpid(one.pid, 0)
    said = one.folder.with_suffix(".err").read_text(errors="replace").strip()
    changed = sorted(name for name, _ in one.before.items() ^ _content(one.folder).items())
    return Result(one.line, said, _problem(one.line, os.waitstatus_to_exitcode(status), said, changed))


def _problem(line: Line, code: int, said: str, changed: list[str]) -> str | None:
    """What is not as it must be."""
    last = said.splitlines()[-1] if said else ""
    if line.may_train and code == ExitCode.FINISHED:
        return None
    if line.key is None:
        return None if code == ExitCode.FINISHED else f"code {code} for what is right: {last}"
    if code != ExitCode.REFUSED:
        return f"code {code}: {last}" if code else "it trains"
    if said.count("\n"):
        return f"{said.count(chr(10)) + 1} lines: {last}"
    if changed:
        return f"left behind or changed: {', '.join(changed[:3])}"
    subject, _, accepted = said.partition(": ")
    return None if line.key in subject and accepted else f"does not name the key, its value and what is accepted: {said}"


# The report


def table(results: Sequence[Result]) -> str:
    """How many of each kind, and how they ended."""
    about = environment()
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in ("torch", "lightning", "hydra-core"))
    command = shlex.join(["python", "benchmarks/torture.py", *sys.argv[1:]])
    commit = f"commit {(about['git_commit'] or 'unknown')[:12]}{' with changes' if about['git_dirty'] else ''}"
    wrong = [result for result in results if result.line.key is not None]
    right = [result for result in results if result.line.key is None]
    kinds = dict.fromkeys(result.line.kind for result in wrong)
    rows = ["| what is wrong | command lines | one line, code 2, nothing left | otherwise |", "|---|---|---|---|"]
    rows += [_row(kind, [result for result in wrong if result.line.kind == kind]) for kind in kinds]
    rows.append(_row("**all**", wrong))
    trained = sum(result.problem is None for result in right)
    head = [f"`{command}`; {commit}, {versions}, Python {about['python']}.", ""]
    return "\n".join([*head, *rows, "", f"Of {len(right)} that look wrong and are right {trained} trained."])


def _row(name: str, results: Sequence[Result]) -> str:
    bad = sum(result.problem is not None for result in results)
    return f"| {name} | {len(results)} | {len(results) - bad} | {bad} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="those with such a text in them")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th")
    parser.add_argument("--jobs", type=int, default=2, help="at once (default: 2)")
    parser.add_argument("--list", action="store_true", help="print them, run none")
    parser.add_argument("--verbose", action="store_true", help="show what each says")
    arguments = parser.parse_args()
    todo = [line for line in lines() if not arguments.only or any(text in f"{line.kind}: {line}" for text in arguments.only)]
    todo = todo[:: arguments.every]
    if arguments.list:
        print(*(f"{line.kind}: {line}" for line in todo), sep="\n")
        return

    def show(result: Result) -> None:
        if result.problem or arguments.verbose:
            print(f"{result.line.kind}: {result.line}\n    {(result.problem or result.said)[:600]}", file=sys.stderr, flush=True)

    results = run_all(todo, arguments.jobs, show)
    print(table(results))
    sys.exit(any(result.problem for result in results))


if __name__ == "__main__":
    main()
