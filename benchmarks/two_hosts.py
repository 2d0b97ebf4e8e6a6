"""Two hosts on one machine: two network namespaces (network_namespaces(7)) with addresses of their own, joined by a link that
can be slowed down and cut. Needs Linux, iproute2, and to be root. The hosts share the file system, processors and clock."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LAUNCHER = Path(__file__).resolve().parents[1] / "scripts" / "torchrun_multinode.sh"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29500  # free: each host has all ports of its own
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
_BURST = 64  # KiB that the token bucket lets through at once: a packet of TCP's before it is cut to frames
_RETRIES = 7  # times that TCP sends again what nobody acknowledges, 51 seconds; Linux has 15, for 15 minutes (ip-sysctl)


def why_not() -> str | None:
    """The reason for which there can be no such hosts here."""
    if missing := [name for name in ("ip", "tc") if shutil.which(name, path=_PATH) is None]:
        return f"there is no {missing[0]} (Debian has it as iproute2)"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    try:
        with two_hosts() as hosts:
            hosts.slow_down(100)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"
    return None


class Hosts:
    """Number 0 and 1. Their link is a pair of veth(4) devices, of the kernel's own speed."""

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self.names = tuple(f"lockstep-{os.getpid()}-{number}" for number in (0, 1))

    def start(self) -> None:
        for name in self.names:
            _run("ip", "netns", "add", name)
            _run("ip", "netns", "exec", name, "sh", "-c", f"echo {self.retries} > /proc/sys/net/ipv4/tcp_retries2")
        first, second = self.names
        _run("ip", "-n", first, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", second)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "link0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "link0", "up")

    def slow_down(self, rate: float, delay: float = 0.0, loss: float = 0.0) -> None:
        """The link's rate in Mbit/s and, with a kernel that has netem (tc-netem(8)), its delay in ms and loss in %; each way.
        Raises CalledProcessError where the kernel can't: for a rate alone tc-tbf(8) is enough."""
        if delay or loss:
            how = ["netem", "rate", f"{rate:g}mbit", "delay", f"{delay:g}ms", "loss", f"{loss:g}%"]
        else:
            how = ["tbf", "rate", f"{rate:g}mbit", "burst", f"{_BURST}kb", "latency", "400ms"]
        for name in self.names:
            _run("tc", "-n", name, "qdisc", "replace", "dev", "link0", "root", *how)

    def cut(self) -> None:
        """As a cable that is pulled: nobody is told."""
        _run("ip", "-n", self.names[0], "link", "set", "link0", "down")

    def mend(self) -> None:
        _run("ip", "-n", self.names[0], "link", "set", "link0", "up")

    def launch(self, number: int, output: Path, *arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        """`scripts/torchrun_multinode.sh ARGUMENTS` on one of them, in a session of its own."""
        own = {"RENDEZVOUS": f"{ADDRESSES[0]}:{PORT}", "HOST_INDEX": str(number), "PROCESSES": "1", "OMP_NUM_THREADS": "1"}
        variables = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
        command = ["ip", "netns", "exec", self.names[number], LAUNCHER, *arguments]
        with output.open("ab") as file:
            return subprocess.Popen(
                command,
                env=_with_path(variables | own | environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ends what still runs on them first."""
        for name in self.names:
            done = subprocess.run(
                ["ip", "netns", "pids", name], env=_with_path(os.environ), capture_output=True, text=True, check=False
            )
            for pid in done.stdout.split():
                subprocess.run(["kill", "-9", pid], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", name], env=_with_path(os.environ), capture_output=True, check=False)


@contextmanager
def two_hosts(retries: int = _RETRIES) -> Iterator[Hosts]:
    hosts = Hosts(retries)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


def _run(*command: str) -> None:
    subprocess.run(command, env=_with_path(os.environ), check=True, capture_output=True, text=True, timeout=30)


def _with_path(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PATH": _PATH}
