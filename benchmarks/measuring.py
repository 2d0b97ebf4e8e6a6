"""Runs one competitor once, and measures the processes that it is."""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from suites import Competitor

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds


class Sample(NamedTuple):
    """Of one start.

    samples, steps: trained on; a step is counted once, however many processes make it.
    train_time, train_cpu: seconds on the clock and of rank zero's processor in training, a validation included.
    seconds, cpu: from start to end, of all processes.
    peak_mib: of the largest process, until it has ended, in MiB, by the system's account of resident memory (wait4(2)): a page
        that it shares with others, of a library say, counts in full.
    device_gib: of a GPU's memory, at most; None without one.
    """

    samples: int
    steps: int
    train_time: float
    train_cpu: float
    seconds: float
    cpu: float
    peak_mib: float
    device_gib: float | None


def measured(competitor: Competitor) -> Sample:
    """Raises CalledProcessError, with what was printed, where a process fails."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, *competitor.command(record)]
        began = time.perf_counter()
        environments = rank_environments(competitor.processes) if competitor.starts_as_ranks else [{}]
        processes = [_start(command, environment, folder) for environment in environments]
        try:
            usages = [_wait_for_end(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
        seconds = time.perf_counter() - began
        result: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
    return Sample(
        samples=result.get("samples_trained", 0),
        steps=result.get("steps", 0),
        train_time=result.get("train_time", 0.0),
        train_cpu=result.get("train_cpu_time", 0.0),
        seconds=seconds,
        cpu=sum(usage.ru_utime + usage.ru_stime for usage in usages),
        peak_mib=max(usage.ru_maxrss for usage in usages) / 1024,
        device_gib=result.get("device_memory_gib"),
    )


def _wait_for_end(process: subprocess.Popen[str]) -> resource.struct_rusage:
    """What it has used, and those that it has started and waited for. Raises CalledProcessError where it fails."""
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    assert process.stdout is not None
    with process.stdout as stream:
        output = stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        failure = subprocess.CalledProcessError(process.returncode, process.args, output)
        failure.add_note(output)  # a traceback shows it
        raise failure
    return usage


def _start(command: list[str], environment: dict[str, str], folder: str) -> subprocess.Popen[str]:
    """One thread a process: two that share two cores would otherwise be compared with one that has both. Modules' bytecode is
    kept, as wherever nobody forbids it: the first start compiles thousands of them."""
    path = os.pathsep.join(str(ROOT / place) for place in ("src", "benchmarks", "benchmarks/competitors"))
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | fixed | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_ranks(command: list[str], processes: int, **environment: str) -> None:
    """A command as so many ranks, one thread each; this program ends where one of them fails."""
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "src")}
    ranks = [subprocess.Popen(command, env=os.environ | fixed | environment | rank) for rank in rank_environments(processes)]
    if any(codes := [rank.wait() for rank in ranks]):
        sys.exit(f"the ranks of {' '.join(command)} left with {codes}")


def rank_environments(processes: int) -> list[dict[str, str]]:
    """The environments that torchrun would start them with; none for one process."""
    if processes == 1:
        return [{}]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    everyone = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    everyone |= {"TORCHELASTIC_RUN_ID": "benchmark", "GROUP_RANK": 0}
    ranks = [everyone | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return [{name: str(value) for name, value in rank.items()} for rank in ranks]
