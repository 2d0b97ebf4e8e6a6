"""Ranks that stay: started once, then given one training after another, since starting one takes seconds of imports.

Imports no torch.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkdtemp
from typing import Any

from lockstep.config.plan import cores
from lockstep.errors import ConfigError
from lockstep.launchers.supervisor import SHUTDOWN_GRACE, use_loopback

_JOBS = "lockstep.extras.parity.observe"
_BEFORE_THE_FIRST_BATCH = 3  # times as long may pass: data has to be read, and rank zero may have to download it
_LIBRARIES = ("site-packages", str(Path(__file__).parent), str(Path(os.__file__).parent), "<")


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


class Groups:
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

    def __enter__(self) -> "Groups":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in [rank for ranks in self._ranks.values() for rank in ranks]:
            rank.connection.close()
            rank.process.kill()
            rank.process.join()
        self._ranks.clear()

    def run(self, jobs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        """One job for all ranks of each group, at the same time; what rank zero of each has returned. A job is a function of
        observe.py by its name, since the parent imports no torch, and its arguments; it is given a function to report by, too.

        Raises SideFailed for what a rank raises or where all of them wait, ConfigError where a rank raises one; the groups
        then start anew.
        """
        try:
            for name, job in jobs.items():
                if name not in self._ranks:
                    self._ranks[name] = self._started(name)
                for rank in self._ranks[name]:
                    rank.at = "before its first batch"
                    rank.connection.send(job)
            return self._results([rank for name in jobs for rank in self._ranks[name]])
        except BaseException:
            self.__exit__()
            raise

    def _started(self, name: str) -> "list[_Rank]":
        group, home, ranks = self.groups[name], Path(mkdtemp(prefix=f"{name}-", dir=self.folder)), []
        for number in range(group.world_size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, group, number, home, self._threads))
            process.start()
            theirs.close()
            ranks.append(_Rank(name, number, process, ours))
        return ranks

    def _results(self, ranks: "list[_Rank]") -> dict[str, Any]:
        waiting = {rank.connection: rank for rank in ranks}
        results, failures, deadline = {}, [], float("inf")
        heard, patience = time.monotonic(), _BEFORE_THE_FIRST_BATCH * self.patience
        while waiting and time.monotonic() < deadline:
            ended = {rank.process.sentinel: rank for rank in waiting.values()}  # whose data workers may hold its connection open
            for ready in wait([*waiting, *ended], timeout=min(1.0, SHUTDOWN_GRACE)):
                rank = (waiting | ended)[ready]  # pyright: ignore[reportArgumentType]
                if rank.connection not in waiting:
                    continue
                kind, said = "failed", "the process was killed"
                with contextlib.suppress(EOFError, ConnectionError):
                    if rank.connection.poll():
                        kind, said = rank.connection.recv()
                heard = time.monotonic()
                if kind == "at":
                    rank.at, patience = said, self.patience
                    self.show(f"{self.doing}: {said}")
                    continue
                del waiting[rank.connection]
                if kind == "failed":
                    failures.append((rank.group, said))
                    deadline = min(deadline, time.monotonic() + SHUTDOWN_GRACE)  # the others say why they end, too
                elif rank.number == 0:
                    results[rank.group] = said
            if not failures and time.monotonic() - heard > patience:
                raise _hung(list(waiting.values()), patience)
        for _, said in failures:
            if isinstance(said, ConfigError):
                raise said
        if failures:
            side = failures[0][0]
            raise SideFailed(side, [said for name, said in failures if name == side])
        return results


@dataclass
class _Rank:
    group: str
    number: int
    process: Any
    connection: Connection
    at: str = ""  # how far it is, in its own words

    def waits(self) -> str:
        """Where, it is asked: while its main thread waits another one answers."""
        where = "which does not answer"
        with contextlib.suppress(OSError, EOFError):
            self.connection.send("where")
            if self.connection.poll(1.0):
                _, where = self.connection.recv()
        return f"process {self.number} of the {self.group} {self.at}, {where}"


def _hung(ranks: list[_Rank], patience: float) -> SideFailed:
    """Named is a side of several processes, since these wait for each other; another side waits for that one."""
    named = [rank for rank in ranks if sum(other.group == rank.group for other in ranks) > 1] or ranks
    where = "; ".join(rank.waits() for rank in named)
    return SideFailed(named[0].group, [f"no process has gone on for {patience:g} seconds (parity.timeout): {where}"])


def _serve(connection: Connection, group: Group, rank: int, home: Path, threads: int) -> None:
    """A rank: its jobs come by the connection; it ends when that is closed, or the parent is gone."""
    jobs: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
    with (home / f"rank{rank}.log").open("ab") as log:  # what the libraries say, gloo's own lines included
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    multiprocessing.set_start_method(None, force=True)  # of data workers: the default, as in a run
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}  # Lightning then starts no processes
    use_loopback(os.environ)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic kernels may come later; it is read once
    try:
        _join(group, rank, home, threads)
        while True:
            function, *arguments = jobs.get()
            train = getattr(importlib.import_module(_JOBS), function)
            connection.send(("done", train(*arguments, lambda where: connection.send(("at", where)))))
    except ConfigError as error:
        connection.send(("failed", ConfigError(str(error))))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


def _listen(connection: Connection, jobs: "SimpleQueue[tuple[Any, ...]]") -> None:
    """Hands on jobs, and says where the main thread is when that is asked."""
    try:
        while message := connection.recv():
            if message == "where":
                frame = sys._current_frames()[threading.main_thread().ident or 0]
                connection.send(("waits", innermost(traceback.extract_stack(frame))))
            else:
                jobs.put(message)
    finally:
        os._exit(1)


def innermost(stack: Sequence[traceback.FrameSummary]) -> str:
    """The last frame of a training that is no library's, or the last one of all."""
    if not any(f"{os.sep}parity{os.sep}observe.py" in frame.filename for frame in stack):
        return "not in its training"
    own = [frame for frame in stack if not any(part in frame.filename for part in _LIBRARIES)]
    frame = (own or stack)[-1]
    return f"waits in {frame.filename}:{frame.lineno}, in {frame.name}"


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
