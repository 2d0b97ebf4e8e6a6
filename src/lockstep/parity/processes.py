"""Ranks that stay: started once, then given one training after another, since starting one takes seconds of imports."""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from lockstep.config.plan import cores
from lockstep.errors import ConfigError
from lockstep.launchers.supervisor import LAST_WORDS, use_loopback
from lockstep.parity.waiting import where_it_waits


class Call(NamedTuple):
    """A function of observe.py by its name: the parent imports no torch. It is given a function to report by, too."""

    function: str
    arguments: tuple[Any, ...]


_JOBS = "lockstep.parity.observe"
_BEFORE_THE_FIRST_BATCH = 3  # times as long may pass: data has to be read, and rank zero may have to download it


class SideFailed(RuntimeError):
    """A side raised instead of training: which one, and every rank's traceback."""

    def __init__(self, side: str, tracebacks: list[str]) -> None:
        super().__init__(f"{side}: {tracebacks[0].strip().splitlines()[-1]}")
        self.side, self.tracebacks = side, tracebacks


@dataclass(frozen=True)
class Group:
    """The processes of one side. `device_ids` are GPUs, one a process; none on the CPU."""

    world_size: int
    accelerator: str = "cpu"
    device_ids: tuple[int, ...] | None = None
    timeout: float = 1800  # seconds until a collective gives up


class Processes:
    """A context: the groups named in `groups`, alive from their first job on.

    `patience`: seconds in which no process reports anything, until all of them are taken for hung.
    `show`: called with a line about how far they are, whenever that has changed.
    """

    def __init__(
        self, groups: dict[str, Group], folder: Path, patience: float = 120, show: Callable[[str], None] = lambda _: None
    ) -> None:
        self.groups, self.folder, self.patience, self.show = groups, folder, patience, show
        self.doing = ""  # what the jobs are for, in words
        # CUDA does not survive a fork
        on_gpu = any(group.accelerator == "gpu" for group in groups.values())
        self._context: Any = multiprocessing.get_context("spawn" if on_gpu else "forkserver")
        if not on_gpu:
            self._context.set_forkserver_preload([_JOBS])
        self._ranks: dict[str, list[_Rank]] = {}
        self._threads = max(1, len(cores()) // sum(group.world_size for group in groups.values()))  # all train at once

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, jobs: dict[str, Call]) -> dict[str, Any]:
        """One job for all ranks of each group, at the same time; what rank zero of each has returned.

        Raises SideFailed for what a rank raises or where all of them wait, ConfigError where a rank raises one; the groups
        then start anew.
        """
        try:
            for name, job in jobs.items():
                for rank in self._started(name):
                    rank.at = "before its first batch"
                    rank.connection.send(job)
            return self._results(list(jobs))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for rank in [rank for ranks in self._ranks.values() for rank in ranks]:
            rank.connection.close()
            rank.process.kill()
            rank.process.join()
        self._ranks.clear()

    def _started(self, name: str) -> "list[_Rank]":
        if name not in self._ranks:
            self._ranks[name] = []
            home = Path(mkdtemp(prefix=f"{name}-", dir=self.folder))
            for rank in range(self.groups[name].world_size):
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs, self.groups[name], rank, home, self._threads))
                process.start()
                theirs.close()
                self._ranks[name].append(_Rank(name, rank, process, ours, home / f"rank{rank}.stack"))
        return self._ranks[name]

    def _results(self, names: list[str]) -> dict[str, Any]:
        waiting = {rank.connection: rank for name in names for rank in self._ranks[name]}
        results, failures, deadline = {}, [], float("inf")
        heard, patience = time.monotonic(), _BEFORE_THE_FIRST_BATCH * self.patience
        while waiting and time.monotonic() < deadline:
            for ready in wait(list(waiting), timeout=min(1.0, LAST_WORDS)):
                rank = waiting[ready]  # pyright: ignore[reportArgumentType]
                kind, said = _received(ready)
                heard = time.monotonic()
                if kind == "at":
                    rank.at, patience = said, self.patience
                    self.show(f"{self.doing}: {said}")
                    continue
                del waiting[ready]  # pyright: ignore[reportArgumentType]
                if kind == "failed":
                    failures.append((rank.group, said))
                    deadline = min(deadline, time.monotonic() + LAST_WORDS)  # the others say why they end, too
                elif rank.number == 0:
                    results[rank.group] = said
            if not failures and time.monotonic() - heard > patience:
                raise _hung(list(waiting.values()), patience)
        if failures:
            raise _error(failures)
        return results


@dataclass
class _Rank:
    group: str
    number: int
    process: Any
    connection: Connection
    stack: Path  # where it writes its stack when asked
    at: str = ""  # how far it is, in its own words

    def waits(self) -> str:
        return f"process {self.number} of the {self.group} {self.at}, {where_it_waits(self.process.pid, self.stack)}"


def _hung(ranks: list[_Rank], patience: float) -> SideFailed:
    """Named is a side of several processes, since these wait for each other; another side waits for that one."""
    several = [rank for rank in ranks if sum(other.group == rank.group for other in ranks) > 1]
    named = several or ranks
    where = "; ".join(rank.waits() for rank in named)
    line = f"no process has gone on for {patience:g} seconds (parity.timeout): {where}"
    return SideFailed(named[0].group, [line])


def _received(connection: Any) -> tuple[str, Any]:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        return "failed", "the process was killed"


def _error(failures: list[tuple[str, Any]]) -> Exception:
    refused = [said for _, said in failures if isinstance(said, ConfigError)]
    if refused:
        return refused[0]
    side = failures[0][0]
    return SideFailed(side, [said for name, said in failures if name == side])


def _serve(connection: Any, group: Group, rank: int, home: Path, threads: int) -> None:
    """A rank: its jobs come by the connection; it ends when that is closed, or the parent is gone."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _redirect(home / f"rank{rank}.log")
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}  # Lightning then starts no processes
    use_loopback(os.environ)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic kernels may come later; it is read once
    stack = (home / f"rank{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR2, file=stack)
    with contextlib.suppress(EOFError):
        try:
            _join(group, rank, home, threads)
            report = partial(_report, connection)
            while True:
                job = connection.recv()
                connection.send(("done", getattr(importlib.import_module(_JOBS), job.function)(*job.arguments, report)))
        except EOFError:
            raise
        except ConfigError as error:
            connection.send(("failed", ConfigError(str(error))))
        except BaseException:
            connection.send(("failed", traceback.format_exc()))


def _report(connection: Any, where: str) -> None:
    connection.send(("at", where))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _redirect(log: Path) -> None:
    """What the libraries say, gloo's own lines included, goes to a file."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _join(group: Group, rank: int, home: Path, threads: int) -> None:
    """Sets the devices and makes the process group, which Lightning then uses."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    if group.accelerator == "gpu":
        torch.cuda.set_device(group.device_ids[rank] if group.device_ids else rank)
    if group.world_size > 1:
        dist.init_process_group(
            "nccl" if group.accelerator == "gpu" else "gloo",
            store=dist.FileStore(str(home / "store"), group.world_size),
            rank=rank,
            world_size=group.world_size,
            timeout=timedelta(seconds=group.timeout),
        )
