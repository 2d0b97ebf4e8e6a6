"""A command handed over to a warm server, by a process that has imported next to nothing, and that stands for it afterwards: it
is what the shell knows, passes on the signals that it gets, and ends as the command does.

A server is for processes like itself: of one interpreter, environment, user, limits, cgroup, namespaces. Its socket is named by
all that, so that any other command finds none and runs by itself.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# In which commands that import the same may differ: what a terminal or a shell sets, and what is read when it is needed.
OF_TERMINALS = ("TERM", "COLORTERM", "SSH_", "TMUX", "VTE_", "KONSOLE_", "GNOME_TERMINAL_")
OF_COMMANDS = {"_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "WINDOW", "WINDOWID", "STY", "XDG_SESSION_ID"}
OF_COMMANDS |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "HYDRA_FULL_ERROR"}
OF_STATUS = ("Uid", "Gid", "Groups", "Umask", "Cap", "NoNewPrivs", "Seccomp", "Cpus_allowed:", "Mems_allowed:")  # proc(5)
DECLINES = {"warm=false", "fresh_processes=true"}
# Those that reach the command: of a terminal, of `kill`, of a queue. Being stopped and continued the server sees by itself.
PASSED_ON = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
PATIENCE = 5.0  # seconds that a server gets to answer
HERE, READY, GO = b"here", b"ready", b"go"
is_served = False  # was this process forked from a server


def hand_over() -> None:
    """Has this command run by a server, if there is one for it, and ends as it does; returns where there is none, or where this
    interpreter was not simply started as `python SCRIPT ARGUMENTS`."""
    is_plain = sys.orig_argv[1:] == sys.argv and Path(sys.argv[0]).is_file()
    is_plain = is_plain and None not in (sys.stdin, sys.stdout, sys.stderr)  # else what is opened next takes a stream's number
    if is_served or not is_plain or DECLINES & {*map(str.lower, sys.argv)} or (connection := connect(address())) is None:
        return
    with connection, contextlib.suppress(OSError):
        request = {"arguments": sys.argv, "cwd": str(Path.cwd()), "environment": dict(os.environ)}
        if connection.recv(len(HERE)) != HERE:  # a server that is stopped would hold the streams, and keep their readers waiting
            return
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        if connection.recv(len(READY)) == READY:
            from lockstep.extras.warm.standing import stand_for

            stand_for(connection, GO, PASSED_ON)


def connect(path: Path | None) -> socket.socket | None:
    """Returns a connection to the server that listens there, if it is this user's."""
    if path is not None and path.exists():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(OSError):
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            if peer(connection)[1] == os.getuid():
                return connection
        connection.close()
    return None


def servers() -> Iterator[tuple[int, Path]]:
    """Yields this user's, each with its process and its socket."""
    for path in () if (own := folder()) is None else sorted(own.glob("*.socket")):
        if (connection := connect(path)) is not None:
            with connection:
                yield peer(connection)[0], path


def peer(connection: socket.socket) -> tuple[int, int]:
    """Returns the process at the other end of a connection and its user, by the kernel's word: SO_PEERCRED of unix(7)."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def folder() -> Path | None:
    """Returns where this user's servers listen; None where there is no runtime directory that is theirs alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if sys.platform != "linux" or not Path(runtime).is_absolute() or not _is_private(Path(runtime)):
        return None
    own = Path(runtime, "lockstep")
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
    return own if _is_private(own) else None


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def address() -> Path | None:
    """Returns where a server for processes like this one listens."""
    if (own := folder()) is None:
        return None
    status = Path("/proc/self/status").read_text().splitlines()
    described = [
        *(sys.executable, sys.prefix, sys.version, __file__, list(sys.flags), list(sys.warnoptions), sorted(sys._xoptions)),
        sorted(item for item in os.environ.items() if item[0] not in OF_COMMANDS and not item[0].startswith(OF_TERMINALS)),
        [line for line in status if line.startswith(OF_STATUS)],
        *(Path("/proc/self", name).read_text() for name in ("limits", "cgroup", "oom_score_adj")),
        sorted(str(path.readlink()) for path in Path("/proc/self/ns").iterdir()),
        *(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), Path("/").stat().st_ino, Path("/").stat().st_dev),
    ]
    return own / f"{hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]}.socket"
