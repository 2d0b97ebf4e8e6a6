"""Command of a job on a node of Ray's, or one node's part of it, as a process tree of its own.

python -m lockstep.ray_cluster.worker [options of torchrun] train.py [overrides]

is that part: torchrun, which starts this node's processes and ends with the worker that has started it.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.launchers.environment import SWEEP_PIPE, reserved_port
from lockstep.launchers.processes import kill_group
from lockstep.launchers.rank import attach_to_parent

POLL = 0.05  # seconds between two looks at the process


class JobWorker:
    """Becomes an actor of Ray's with two threads: one is in `run`, the other takes requests to stop.

    When this process dies, however it dies, the job sees an end of file on its pipe, and follows.
    """

    def __init__(self, cwd: str) -> None:
        os.chdir(cwd)
        self._requests = 0
        self._port = contextlib.ExitStack()

    def place(self) -> tuple[str, int]:
        """Answer when Ray has found a place: with an address at which ranks of several nodes can meet."""
        host = importlib.import_module("ray.util").get_node_ip_address()
        return host, self._port.enter_context(reserved_port(""))

    def run(self, command: Sequence[str], given: Mapping[str, str], output: str) -> int:
        """Run the command to its end, after which nothing of it is left; return its code, negative for a signal."""
        reader, writer = os.pipe()
        with open(reader), open(writer, "w"), Path(output).open("ab") as file:  # noqa: PTH123
            environment = {**os.environ, **given, SWEEP_PIPE: str(reader)}
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            process = subprocess.Popen(command, env=environment, pass_fds=(reader,), start_new_session=True, **streams)
            try:
                answered = 0
                while (code := process.poll()) is None:
                    if self._requests > answered:
                        answered = self._requests
                        process.send_signal(signal.SIGTERM)
                    time.sleep(POLL)
            finally:
                kill_group(process.pid)
        return code

    def ask_to_end(self) -> None:
        self._requests += 1


if __name__ == "__main__":
    attach_to_parent()
    importlib.import_module("torch.distributed.run").main()
