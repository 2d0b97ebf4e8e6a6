"""Runs one competitor once, and measures the processes that it is."""

import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from suites import Competitor

from lockstep.launchers.processes import stat

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds
TURN = 0.2  # seconds


class Sample(NamedTuple):
    """Figures of one start.

    samples, steps: trained on; a step is counted once, however many processes make it.
    train_time, train_cpu: seconds on the clock and of rank zero's processor in training, a validation included.
    seconds, cpu: from start to end, of all processes.
    peak_mib: of the largest process, until it has ended, in MiB, by the system's account of resident memory (wait4(2)): a page
        that it shares with others, of a library say, counts in full.
    """

    samples: int
    steps: int
    train_time: float
    train_cpu: float
    seconds: float
    cpu: float
    peak_mib: float


def measured(competitor: Competitor) -> Sample:
    """Raises CalledProcessError, with what was printed, where a process fails."""
    with _Run(competitor) as run:
        return run.sample()


def measured_in_turns(competitors: Sequence[Competitor]) -> list[Sample]:
    """Measures them at the same time: what is timed, of which each program says by competitors/turns.py where it begins and
    ends, runs in turns of TURN seconds. Where the machine becomes slower for a while, it does so for all of them. Each starts
    alone, and ends alone; `seconds` are with the others'."""
    with contextlib.ExitStack() as stack:
        runs: list[_Run] = []
        for competitor in competitors:
            runs.append(stack.enter_context(_Run(competitor, in_turns=True)))
            runs[-1].wait_for_first_turn()
        samples: dict[_Run, Sample] = {}
        while len(samples) < len(runs):
            for run in random.sample(runs, len(runs)):
                if run not in samples and run.is_over_after_turn():
                    samples[run] = run.sample()
        return [samples[run] for run in runs]


class _Run:
    """One start of a competitor, whose processes end with it."""

    def __init__(self, competitor: Competitor, in_turns: bool = False) -> None:
        self._competitor, self._in_turns = competitor, in_turns
        self._has_waited = 0.0  # seconds between its turns
        self._stopped: float | None = None

    def __enter__(self) -> Self:
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        self._turns = self._folder / "turns"
        self._turns.mkdir()
        command = [sys.executable, *self._competitor.command(self._folder / "record.json")]
        own = rank_environments(self._competitor.processes) if self._competitor.starts_as_ranks else [{}]
        turns = {"TURNS": str(self._turns)} if self._in_turns else {}
        self._began = time.perf_counter()
        self._processes = [self._start(command, environment | turns) for environment in own]
        return self

    def __exit__(self, *_: object) -> None:
        self._signal_ranks(signal.SIGCONT)
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._files.cleanup()

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """One thread a process: two that share two cores would otherwise be compared with one that has both. Modules' bytecode is
        kept, as wherever nobody forbids it: the first start compiles thousands of them."""
        path = os.pathsep.join(str(ROOT / place) for place in ("src", "benchmarks", "benchmarks/competitors"))
        fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": ""}
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | fixed | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_for_first_turn(self) -> None:
        """Returns when all of its ranks stand where their clocks start."""
        deadline = time.monotonic() + TIMEOUT
        while [stat(rank)[0] for rank in self._ranks()] != ["T"] * self._competitor.processes:
            if self._has_ended() or time.monotonic() > deadline:
                self.sample()
                raise RuntimeError(f"{self._competitor.name} has not come to its clock")
            time.sleep(0.05)

    def is_over_after_turn(self) -> bool:
        """Lets it run for TURN seconds. Returns whether the clock of rank zero has stopped; it then runs on."""
        if self._stopped is not None:
            self._has_waited += time.perf_counter() - self._stopped
        self._signal_ranks(signal.SIGCONT)
        end = time.monotonic() + TURN
        while not (is_over := not (self._turns / "0").exists() or self._has_ended()) and time.monotonic() < end:
            time.sleep(0.01)
        if not is_over:
            self._signal_ranks(signal.SIGSTOP)
            self._stopped = time.perf_counter()
        return is_over

    def _ranks(self) -> list[int]:
        """Returns the processes whose clocks run or are to run."""
        ranks: list[int] = []
        for path in self._turns.iterdir():
            with contextlib.suppress(FileNotFoundError, ValueError):  # its clock has stopped; the file is being written
                ranks.append(int(path.read_text()))
        return ranks

    def _signal_ranks(self, number: int) -> None:
        for rank in self._ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, number)

    def _has_ended(self) -> bool:
        """Returns whether one of its processes has; that is waited for afterwards."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return any(os.waitid(os.P_PID, process.pid, how) for process in self._processes)

    def sample(self) -> Sample:
        """Waits for its end. Raises CalledProcessError, with what was printed, where a process fails."""
        usages = [self._wait_for_end(process) for process in self._processes]
        seconds = time.perf_counter() - self._began
        record = self._folder / "record.json"
        result: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
        return Sample(
            samples=result.get("samples_trained", 0),
            steps=result.get("steps", 0),
            train_time=result.get("train_time", 0.0) - self._has_waited,
            train_cpu=result.get("train_cpu_time", 0.0),
            seconds=seconds,
            cpu=sum(usage.ru_utime + usage.ru_stime for usage in usages),
            peak_mib=max(usage.ru_maxrss for usage in usages) / 1024,
        )

    def _wait_for_end(self, process: subprocess.Popen[bytes]) -> resource.struct_rusage:
        """Return the resources used by the program and those that it has waited for. Raises CalledProcessError where it fails."""
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            failure = subprocess.CalledProcessError(process.returncode, process.args)
            failure.add_note((self._folder / "output").read_text())  # a traceback shows it
            raise failure
        return usage


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
