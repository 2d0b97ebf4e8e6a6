"""torchrun's agents as processes of a test: each is a node of its own, though all are on this machine, at addresses of the
loopback. What they start are forks of a process that has imported everything (see forked.py), by torchrun's own option for it.

As a script, `agents.py OUTPUT SCRIPT ARGUMENT...`, it is what they start.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked import run_as_main

TRAIN = Path(__file__).parents[3] / "train.py"
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8"  # seconds; torchrun's own are 30, 5 and 3 of them
FORKED = ("--monitor-interval=0.1", "--start-method=fork", "--run-path")


class Rendezvous:
    """Agents of one id, all ended when the context is left. The one at `host` serves its store."""

    def __init__(self, name: str, host: str, folder: Path) -> None:
        with socket.create_server((host, 0)) as listener:
            port = listener.getsockname()[1]
        self.options = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", f"--rdzv-id={name}"]
        self.host, self.folder = host, folder
        self._agents: list[Any] = []
        folder.mkdir()

    def __enter__(self) -> "Rendezvous":
        return self

    def agent(self, address: str, *overrides: str, max_restarts: int = 2) -> Any:
        """A process, `torchrun ... train.py OVERRIDES`, whose node has that address."""
        conf = f"--rdzv-conf={QUICK},is_host={int(address == self.host)}"
        own = [f"--local-addr={address}", "--nproc-per-node=1", f"--max-restarts={max_restarts}", conf]
        self._agents.append(torchrun(*self.options, *own, overrides=overrides, output=self.folder / f"{len(self._agents)}.txt"))
        return self._agents[-1]

    def said(self) -> str:
        """Return the output of all agents and their ranks."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.txt")))

    def __exit__(self, *_: object) -> None:
        for process in self._agents:
            process.kill()
            process.join()


def torchrun(*options: str, overrides: Sequence[str], output: Path) -> Any:
    """A process, `torchrun OPTIONS train.py OVERRIDES` in the folder of the file to which it and its ranks write."""
    arguments = [*options, *FORKED, str(Path(__file__).resolve()), str(output), str(TRAIN), *overrides]
    process = multiprocessing.get_context("forkserver").Process(target=_torchrun, args=(arguments, output))
    process.start()
    return process


def _torchrun(arguments: Sequence[str], output: Path) -> None:
    from torch.distributed.run import main

    _become(output)
    os.chdir(output.parent)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or a restart over gloo fails (pytorch issue 135712)
    main(arguments)


def _become(output: Path | str) -> None:
    """A session's leader that writes to a file."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _become(sys.argv[1])
    sys.exit(run_as_main(sys.argv[2:]))
