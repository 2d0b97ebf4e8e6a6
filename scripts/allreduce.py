"""How fast is an all-reduce here? The time of one by message size, over real processes and the actual backend.

    python scripts/allreduce.py [--processes 2 4] [--backend gloo|nccl] [--seconds 5] [--largest 64] [--json FILE]

Between hosts it is started by torchrun, as scripts/torchrun_multinode.sh scripts/allreduce.py: over the processes of that.

A ring of n processes sends 2(n-1) messages of 1/n of the bytes one after the other: the last column is what a link carries. The
bytes of a training step are those of the gradients, four for each parameter in float32.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.__main__ import script_parser
from lockstep.atomic_files import read_json, write_json
from lockstep.cli import start
from lockstep.config.plan import visible_cores, visible_gpus
from lockstep.console import aligned, say
from lockstep.errors import config_error
from lockstep.launchers.environment import Rank, is_rank_zero, this_rank
from lockstep.launchers.launch import launch
from lockstep.launchers.outcome import Report
from lockstep.launchers.rank import leave_process_group
from lockstep.runs.record import environment

SIZES = tuple(4**k * 1024 for k in range(9))  # bytes: 1 KiB to 64 MiB
ROUNDS = 5  # the middle one counts
PROCESSES_PER_CORE = 8  # more are taken for a slip, as by trainer.devices
TIMEOUT = 60  # seconds until a collective gives up


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2], metavar="N", help="numbers of processes; default: 2")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl where there are enough GPUs, else gloo")
    parser.add_argument("--seconds", type=float, default=5.0, help="to measure in, for each number of processes; default: 5")
    parser.add_argument("--largest", type=float, default=64, metavar="MIB", help="message; default: 64; less on a slow link")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to leave the measurements too")
    arguments = parser.parse_args()
    rank, sizes = this_rank(), tuple(size for size in SIZES if size <= arguments.largest * 2**20)
    backend = checked(arguments, None if rank is None else rank.started[0])
    if rank is not None:
        measured = {rank.world_size: in_group(rank, backend, arguments.seconds, sizes)}
        leave_process_group()
    else:
        measured = {count: in_processes(count, backend, arguments.seconds, sizes) for count in sorted(set(arguments.processes))}
    if not is_rank_zero():
        return
    print(report(backend, measured, sizes))
    if arguments.json is not None:
        rows = {str(count): {"sizes": list(sizes), "seconds": seconds} for count, seconds in measured.items()}
        write_json(arguments.json, {"backend": backend, "processes": rows, **environment()})


def checked(arguments: argparse.Namespace, started: int | None = None) -> str:
    """The backend, where torchrun has `started` so many processes on this host, if it has. Raises ConfigError for what can't be
    measured here."""
    gpus, most = visible_gpus(), PROCESSES_PER_CORE * visible_cores()
    largest = started or max(arguments.processes)
    backend = arguments.backend or ("nccl" if largest <= gpus else "gloo")
    if backend == "nccl" and largest > gpus:
        raise config_error("--backend", backend, f"{largest} processes need as many GPUs, this machine shows {gpus}")
    for count in arguments.processes:
        if not 2 <= count <= max(most, gpus):
            raise config_error("--processes", count, f"accepted is 2 to {max(most, gpus)}")
    if not 2**-6 <= arguments.largest <= 64:
        raise config_error("--largest", f"{arguments.largest:g}", "accepted is 0.016 to 64, in MiB")
    if not 0.1 <= arguments.seconds <= 600:
        raise config_error("--seconds", f"{arguments.seconds:g}", "accepted is 0.1 to 600")
    if arguments.json is not None and (arguments.json.is_dir() or not arguments.json.absolute().parent.is_dir()):
        raise config_error("--json", arguments.json, "accepted is a file in a folder that is there")
    return backend


def in_processes(count: int, backend: str, seconds: float, sizes: Sequence[int] = SIZES) -> list[float]:
    """Seconds of an all-reduce of each size, over that many processes, which are gone afterwards."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        record = Path(folder) / "seconds.json"
        outcome = launch(as_rank, backend, seconds, sizes, record, world_size=count, log=Path(folder) / "log")
        if outcome.code:
            if outcome.traceback:
                print(outcome.traceback, file=sys.stderr)
            say(f"Not measured over {count} processes: {outcome.reason}")
            sys.exit(outcome.code)
        return (read_json(record) or {})["seconds"]


def in_group(process: Rank, backend: str, seconds: float, sizes: Sequence[int], **group: Any) -> list[float]:
    """The same in a process of those; `group` says how they meet, if the environment does not."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(process.local_rank)
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT), **group)
    return [measured(size, seconds / len(sizes)) for size in sizes]


def as_rank(_: Report, backend: str, seconds: float, sizes: Sequence[int], record: Path) -> None:
    import torch.distributed as dist

    rank = this_rank()
    assert rank is not None
    store = dist.FileStore(str(record.with_name("store")), rank.world_size)
    result = in_group(rank, backend, seconds, sizes, store=store, rank=rank.global_rank, world_size=rank.world_size)
    if rank.global_rank == 0:
        write_json(record, {"seconds": result})
    leave_process_group()


def measured(size: int, budget: float) -> float:
    """Seconds of an all-reduce of so many bytes, in the process group there is and by this clock, in about `budget` seconds."""
    import torch
    import torch.distributed as dist

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
    """Bytes that each link of a ring carries in an all-reduce of `size` bytes."""
    return 2 * (processes - 1) / processes * size


def report(backend: str, measured: dict[int, list[float]], sizes: Sequence[int] = SIZES) -> str:
    rows = [
        (f"{count}", f"{size // 1024:,}", f"{1e3 * seconds:.3f}", f"{link_bytes(count, size) / seconds / 1e9:.3f}")
        for count, times in measured.items()
        for size, seconds in zip(sizes, times, strict=True)
    ]
    return f"{backend}\n{aligned([('processes', 'KiB', 'ms a call', 'GB/s of a link'), *rows], right=True)}"


if __name__ == "__main__":
    start(main)
