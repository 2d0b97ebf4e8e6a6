"""Measure the time of an all-reduce by message size, over real processes and the actual backend.

    lockstep allreduce [--processes 2 4] [--backend gloo|nccl] [--seconds 5] [--largest 64] [--json FILE]

Between hosts it is started by torchrun, as scripts/torchrun_multinode.sh scripts/allreduce.py: over the processes of that.

A ring of n processes sends 2(n-1) messages of 1/n of the bytes one after the other: the last column is what a link carries. The
bytes of a training step are those of the gradients, four for each parameter in float32.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lockstep.__main__ import script_parser
from lockstep.atomic_files import read_json, write_json
from lockstep.cli import start
from lockstep.console import show_table
from lockstep.runs.record import environment

SIZES = tuple(4**k * 1024 for k in range(9))  # bytes: 1 KiB to 64 MiB
ROUNDS = 5  # the middle one counts
TIMEOUT = timedelta(seconds=60)  # until a collective gives up


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2], metavar="N", help="numbers of processes; default: 2")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl where there are enough GPUs, else gloo")
    parser.add_argument("--seconds", type=float, default=5.0, help="to measure in, for each number of processes; default: 5")
    parser.add_argument("--largest", type=float, default=64, metavar="MIB", help="message; default: 64; less on a slow link")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to leave the measurements too")
    given = parser.parse_args()
    if "LOCAL_WORLD_SIZE" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        for count in given.processes:
            done = subprocess.run([*torchrun, f"--nproc-per-node={count}", *sys.argv], check=False)
            if done.returncode:
                sys.exit(done.returncode)
        return
    has_gpus = int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    backend, sizes = given.backend or ("nccl" if has_gpus else "gloo"), [size for size in SIZES if size <= given.largest * 2**20]
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=TIMEOUT)
    times, count = [measured(size, given.seconds / len(sizes)) for size in sizes], dist.get_world_size()
    if dist.get_rank() == 0:
        report(backend, count, times, sizes)
        if given.json is not None:
            known = (read_json(given.json) or {}).get("processes", {}) | {str(count): {"sizes": sizes, "seconds": times}}
            write_json(given.json, {"backend": backend, "processes": known, **environment()})
    dist.destroy_process_group()


def measured(size: int, budget: float) -> float:
    """Return the seconds of an all-reduce of `size` bytes in the process group there is, measured in about `budget` seconds."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    message = torch.zeros(size // 4, device=device)

    def time_calls(calls: int) -> float:
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(message)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / calls

    time_calls(1)  # connects
    calls = torch.tensor(max(1, int(budget / ROUNDS / time_calls(2))), device=device)
    dist.broadcast(calls, src=0)
    return sorted(time_calls(int(calls)) for _ in range(ROUNDS))[ROUNDS // 2]


def link_bytes(processes: int, size: int) -> float:
    """Return the bytes that each link of a ring carries in an all-reduce of `size` bytes."""
    return 2 * (processes - 1) / processes * size


def report(backend: str, count: int, times: Sequence[float], sizes: Sequence[int]) -> None:
    rows = [
        (f"{count}", f"{size // 1024:,}", f"{1e3 * seconds:.3f}", f"{link_bytes(count, size) / seconds / 1e9:.3f}")
        for size, seconds in zip(sizes, times, strict=True)
    ]
    print(backend)
    show_table(rows, ("processes", "KiB", "ms a call", "GB/s of a link"))


if __name__ == "__main__":
    start(main)
