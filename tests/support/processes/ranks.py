"""Real gloo processes for tests that need a process group."""

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lockstep.launchers.environment import PARENT_PID

TIMEOUT = 120  # seconds


def in_ranks(world_size: int, function: Callable[[int, int], Any], folder: Path) -> list[Any]:
    """Return what function(rank, world_size) returns in each of `world_size` ranks of a launcher, which are one gloo group."""
    context = mp.get_context("forkserver")  # see conftest.py
    (folder / "store").unlink(missing_ok=True)  # in which a group before may have left where its ranks listened
    processes = [context.Process(target=_rank, args=(rank, world_size, function, folder)) for rank in range(world_size)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT)
        failures = [(folder / f"{rank}.txt").read_text() for rank in range(world_size) if (folder / f"{rank}.txt").exists()]
        assert not failures, "\n".join(failures)
        codes = [process.exitcode for process in processes]
        assert codes == [0] * world_size, f"exit codes {codes}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


def _rank(rank: int, world_size: int, function: Callable[[int, int], Any], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {PARENT_PID: "-1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    mp.set_start_method(None, force=True)  # of data workers: the default, not the one by which this was started
    try:
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT))
        torch.save(function(rank, world_size), folder / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        raise
