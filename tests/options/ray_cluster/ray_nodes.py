"""A cluster of Ray's with two nodes of one CPU each, on this machine: a program, and who runs it.

It prints its address; then `remove` and `add` on standard input take the second node away, as a machine that dies, and add
another; each is answered by a line.
"""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import environment


class Nodes:
    """This program, as it runs."""

    def __init__(self, folder: Path) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen([sys.executable, __file__], cwd=folder, env=environment(), **pipes)
        self.address = self._process.stdout.readline().strip()

    def ask(self, what: str) -> None:
        print(what, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == what

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextmanager
def running_nodes(folder: Path) -> Iterator[Nodes]:
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        nodes.end()


def worker_of(run: Path) -> int:
    """The process that has started the one in whose command line a run's directory is."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if run.name.encode() in path.read_bytes():
                return int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    raise AssertionError(f"no process runs {run}")


if __name__ == "__main__":
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    utils = importlib.import_module("ray.cluster_utils")  # a checkout without Ray is checked too
    cluster = utils.Cluster(initialize_head=True, head_node_args=small)
    node = cluster.add_node(**small)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "remove":
            cluster.remove_node(node, allow_graceful=False)
        else:
            node = cluster.add_node(**small)
        print(line.strip(), flush=True)
    cluster.shutdown()
