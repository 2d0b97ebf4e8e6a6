"""torchrun's agents as processes of a test: each is a node of its own, though all are on this machine, at addresses of the
loopback. What they start are forks of a process that has imported everything (see warm.py), by torchrun's own option for it.

As a script, `agents.py OUTPUT SCRIPT ARGUMENT...`, it is what they start.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lockstep.launchers.main_script import run_as_main

TRAIN = Path(__file__).parents[1] / "train.py"
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"  # seconds; torchrun's own are 30, 5 and 3 of them


class Rendezvous:
    """Agents of one id, all ended when it is left. The one at `host` serves its store."""

    def __init__(self, name: str, host: str, folder: Path) -> None:
        with socket.create_server((host, 0)) as listener:
            port = listener.getsockname()[1]
        self.options = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}"]
        self.options += [f"--rdzv-id={name}", "--monitor-interval=0.1", "--start-method=fork", "--run-path"]
        self.host, self.folder = host, folder
        self._agents: list[Any] = []

    def agent(self, address: str, *overrides: str, ranks: int = 1, max_restarts: int = 2) -> Any:
        """A process, `torchrun ... train.py OVERRIDES`, whose node has that address and so many ranks."""
        conf = f"--rdzv-conf={QUICK},is_host={int(address == self.host)}"
        own = [f"--local-addr={address}", f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}", conf]
        script = [str(Path(__file__).resolve()), str(self.folder / f"{len(self._agents)}.txt"), str(TRAIN)]
        arguments, output = [*self.options, *own, *script, *overrides], str(self.folder / f"agent{len(self._agents)}.txt")
        process = multiprocessing.get_context("forkserver").Process(target=_torchrun, args=(arguments, output))
        process.start()
        self._agents.append(process)
        return process

    def said(self) -> str:
        """By all agents and their ranks."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.txt")))

    def end(self) -> None:
        for process in self._agents:
            process.kill()
            process.join()


@contextmanager
def rendezvous(name: str, host: str, folder: Path) -> Iterator[Rendezvous]:
    folder.mkdir()
    one = Rendezvous(name, host, folder)
    try:
        yield one
    finally:
        one.end()


def _torchrun(arguments: Sequence[str], output: str) -> None:
    from torch.distributed.run import main

    _become(output)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or a restart over gloo fails (pytorch issue 135712)
    main(arguments)


def _become(output: str) -> None:
    """A session's leader that writes to a file."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    import torch

    _become(sys.argv[1])
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)  # which has read that already
    sys.exit(run_as_main(sys.argv[2:]))
