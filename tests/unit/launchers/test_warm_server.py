"""Processes forked by a server that has imported: each is what a fresh interpreter makes of the same command, and ends so."""

import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import MARK, environment, processes_marked
from waiting import wait_for

from lockstep.launchers import processes as launchers
from lockstep.launchers.environment import SWEEP_PIPE, WARM_SERVER
from lockstep.launchers.processes import Forked, Processes, Server
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.launchers.warm_server import Request

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose modules come first: here servers are quick, for there is no torch to import."""
    for name in ("torch", "lightning"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(WARM_SERVER, raising=False)
    return tmp_path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files, by a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@pytest.fixture
def start(processes: Processes, folder: Path) -> Iterator[Start]:
    """Starts the script given as text; its output goes to the file `output`."""
    reader, writer = os.pipe()

    def start(text: str, *arguments: str, fresh: bool = False, **env: str) -> Any:
        (folder / "script.py").write_text(text)
        command = [sys.executable, "script.py", *arguments]
        with (folder / "output").open("wb") as file:
            return processes.start(command, environment(**env), (SWEEP_PIPE, reader), file, file, fresh=fresh)

    yield start
    for descriptor in (reader, writer):
        os.close(descriptor)


def end_of(process: Any) -> tuple[int, str]:
    """Its exit code, and what it has said."""
    code = process.wait()
    assert process.poll() == process.returncode == code
    return code, Path("output").read_text()


LOOK = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "main": sys.modules["__main__"].look(),
    "cwd": os.getcwd(), "given": os.environ["GIVEN"], "variables": sorted(os.environ), "stdin": sys.stdin.read(),
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "cores": sorted(os.sched_getaffinity(0)),
    "follows": os.readlink(f"/proc/self/fd/{os.environ['LOCKSTEP_SWEEP_PIPE']}").partition(":")[0],
}))
""".replace("\nprint", "\ndef look(): return __name__\nprint")


def test_it_is_what_a_fresh_one_is(start: Start) -> None:
    mark = {"GIVEN": "x y", MARK: "one"}
    process = start(LOOK, "a=1", "b c", **mark)
    assert isinstance(process, Forked)
    code, said = end_of(process)
    found = json.loads(said)
    assert code == 0
    code, said = end_of(start(LOOK, "a=1", "b c", fresh=True, **mark))
    assert {**found, "variables": None} == {**json.loads(said), "variables": None}
    assert {*found["variables"]} - {*json.loads(said)["variables"]} == {WARM_SERVER}
    assert found["argv"] == ["script.py", "a=1", "b c"]
    assert found["leads"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print('all is well')", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit(256 + 5)", 5),
        ("import sys; sys.exit('why')", 1),
        ("def f(): raise ValueError('why')\nf()", 1),
        ("this is no Python", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import signal, time; signal.raise_signal(signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
        ("import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit(2)", 2),
        ("import threading, time; threading.Thread(target=lambda: [time.sleep(0.2), print('later')]).start()", 0),
    ],
)
def test_it_ends_as_a_fresh_one_does(text: str, code: int, start: Start) -> None:
    process = start(text)
    assert isinstance(process, Forked)
    ended = end_of(process)
    assert ended[0] == code
    assert ended == end_of(start(text, fresh=True))


def test_it_can_be_asked_to_end(start: Start) -> None:
    process = start("import time; print('up', flush=True); time.sleep(60)")
    wait_for(lambda: Path("output").read_text() == "up\n")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (-signal.SIGTERM, "up\n")
    process.send_signal(signal.SIGTERM)  # which reaches nobody


SERVED = "import os; print(os.getppid())"


def test_one_server_serves_all_of_one_environment(start: Start) -> None:
    env = {MARK: "one", "OMP_NUM_THREADS": "1"}
    first = end_of(start(SERVED, **env))
    assert end_of(start(SERVED, **env, CUDA_VISIBLE_DEVICES="1", RANK="1")) == first
    other = end_of(start(SERVED, **env | {"OMP_NUM_THREADS": "2"}))  # read when libraries are loaded
    assert other != first
    assert end_of(start(SERVED, **env)) == first


def test_the_server_of_another_process_is_used(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job finds in its environment what it was forked from, for its ranks."""
    _, said = end_of(start(SERVED + "; print(os.environ['LOCKSTEP_WARM_SERVER'])", **{MARK: "one"}))
    server, path = said.split()
    monkeypatch.setenv(WARM_SERVER, path)
    others, (reader, writer) = Processes(), os.pipe()
    Path("script.py").write_text(SERVED)
    with Path("output").open("wb") as file:
        lifeline = (SWEEP_PIPE, reader)
        process = others.start([sys.executable, "script.py"], environment(**{MARK: "one"}), lifeline, file, file)
    assert end_of(process) == (0, f"{server}\n")
    os.close(reader)
    os.close(writer)


def test_code_that_has_changed_is_imported_anew(start: Start, folder: Path) -> None:
    (folder / "torch.py").unlink()
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").touch()
    module = folder / "torch" / "_dynamo.py"
    text = "import sys; print('torch._dynamo' in sys.modules); import torch._dynamo; print(torch._dynamo.VALUE)"
    for value in ("'first'", "'second'"):
        module.write_text(f"VALUE = {value}")
        os.utime(module, ns=(time.time_ns(), time.time_ns()))
        assert end_of(start(text, **{MARK: "one"})) == (0, f"True\n{value[1:-1]}\n")


def test_a_server_that_is_killed_takes_nothing_with_it(start: Start) -> None:
    """What runs goes on, and says itself how it has ended, unless it can't; then there is another server."""
    text = "import os, sys, time; print(os.getppid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n{}"
    servers = list[int]()
    for end, code in {"sys.exit(5)": 5, "os._exit(5)": -signal.SIGKILL}.items():
        process = start(text.format(end), **{MARK: "one"})
        wait_for(lambda: Path("output").read_text().endswith("\n"))
        servers.append(int(Path("output").read_text()))
        os.kill(servers[-1], signal.SIGKILL)
        time.sleep(0.2)
        assert process.poll() is None
        Path("go").touch()
        assert end_of(process)[0] == code
        Path("go").unlink()
    assert len(set(servers)) == 2


CLIENT = """
import os, sys, time
from pathlib import Path
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import PROCESSES

reader, _ = os.pipe()
Path("script.py").write_text(
    "import time; from lockstep.launchers import rank; rank.attach_to_parent(); print('up', flush=True); time.sleep(60)"
)
PROCESSES.start([sys.executable, "script.py"], dict(os.environ), (SWEEP_PIPE, reader))
time.sleep(float(sys.argv[1]))
"""


def test_all_end_with_a_parent_that_is_killed(temporary: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", CLIENT, "60"]
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        assert len(processes_marked(mark)) == 3
        client.kill()
        wait_for(lambda: not processes_marked(mark))
    assert not list(temporary.iterdir())


CALLED = "import os; print(*(open(f'/proc/{pid}/cmdline').read().rstrip(chr(0)) for pid in (os.getppid(), os.getpid())), sep='|')"


@pytest.mark.skipif(find_spec("setproctitle") is None, reason="without setproctitle processes keep their names")
def test_processes_say_what_they_are(start: Start) -> None:
    """A fork is its command until it says that it is a rank or a job; /proc/PID/environ is as it was, and the name in
    /proc/PID/stat is one word, as SLURM's proctrack/linuxproc reads it."""
    server, own = end_of(start(CALLED, "a=1", "b c", **{MARK: "one"}))[1].strip().split("|")
    assert (server, own) == ("lockstep import server", f"{sys.executable} script.py a=1 'b c'")
    text = "from lockstep.launchers.process_title import set_title; import os; set_title('lockstep rank 1/4 RUN'); " + CALLED
    text += f"; print('{MARK}=one' in open('/proc/self/environ').read(), 'SPT_NOENV' in os.environ)"
    text += "; print(open('/proc/self/stat').read().split()[3] == str(os.getppid()))"
    assert end_of(start(text, **{MARK: "one"}))[1].endswith("|lockstep rank 1/4 RUN\nTrue False\nTrue\n")


def test_few_open_files_are_enough_to_start_what_is_asked_for() -> None:
    command = ["bash", "-c", 'ulimit -n 40; exec "$@"', "bash", sys.executable, "-c", CLIENT, "60"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        client.kill()


def test_a_server_that_still_imports_ends_too(folder: Path, temporary: Path) -> None:
    (folder / "torch.py").write_text("import time, pathlib; pathlib.Path('importing').touch(); time.sleep(60)")
    mark = uuid.uuid4().hex
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    with subprocess.Popen([sys.executable, "-c", CLIENT, "60"], env=env) as client:
        wait_for((folder / "importing").exists)
        client.kill()
        wait_for(lambda: not processes_marked(mark), seconds=10)
    assert not list(temporary.iterdir())


def test_no_server_outlives_a_parent_that_ends(temporary: Path) -> None:
    mark = uuid.uuid4().hex
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    subprocess.run([sys.executable, "-c", CLIENT, "0"], env=env, check=True, timeout=60, stdout=subprocess.DEVNULL)
    wait_for(lambda: not processes_marked(mark))
    assert not list(temporary.iterdir())


def test_without_a_server_there_are_fresh_ones(start: Start, folder: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(folder / "missing"))
            process = start("print('all is well')")
        assert isinstance(process, subprocess.Popen)
        assert end_of(process) == (0, "all is well\n")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Processes are started as fresh interpreters, each of which imports torch anew: [Errno 2]")


def test_nobody_who_is_asked_to_stop_waits_for_a_server(start: Start) -> None:
    with STOP_SIGNALS.deferring() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: received)
        assert isinstance(process := start("print('all is well')"), subprocess.Popen)
    assert end_of(process) == (0, "all is well\n")


# A server that is stopped, or hangs


def stopped(server: int) -> None:
    os.kill(server, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] == "T")


@pytest.mark.parametrize(("end", "code"), [("sys.exit(5)", 5), ("raise KeyboardInterrupt", -2), ("os._exit(5)", -9)])
def test_nobody_waits_for_a_stopped_server_to_say_how_it_ends(
    end: str, code: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "EXIT_CODE_GRACE", 0.2)
    text = "import os, sys, time; print(os.getppid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n" + end
    process = start(text, **{MARK: "one"})
    wait_for(lambda: Path("output").read_text().endswith("\n"))
    stopped(int(Path("output").read_text()))
    assert process.poll() is None
    Path("go").touch()
    assert process.wait(timeout=60) == code
    process.send_signal(signal.SIGTERM)  # which reaches nobody


def test_nobody_waits_for_a_stopped_server_to_start_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server does; and what the stopped one would fork when it goes on ends at once."""
    text = "import os; print(os.getppid()); open('begun', 'a').write('x')"
    server = int(end_of(start(text, **{MARK: "one"}))[1])
    stopped(server)
    monkeypatch.setattr(launchers, "PATIENCE", 0.3)
    monkeypatch.setattr(Server, "__init__", slowly(Server.__init__, monkeypatch))
    code, said = end_of(start(text, **{MARK: "one"}))
    assert (code, int(said) != server) == (0, True)
    os.kill(server, signal.SIGCONT)
    time.sleep(0.3)
    assert Path("begun").read_text() == "xx"


def slowly(begin: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new server may take its time to import."""

    def patient(*arguments: Any) -> None:
        monkeypatch.setattr(launchers, "PATIENCE", 120)
        begin(*arguments)

    return patient


def test_what_is_forked_for_one_who_has_given_up_never_begins(start: Start, processes: Processes, folder: Path) -> None:
    """It waits for his word."""
    assert end_of(start("open('begun', 'w').close()", **{MARK: "one"}))[0] == 0
    (folder / "begun").unlink()
    request = Request(["script.py"], str(folder), environment(**{MARK: "one"}), SWEEP_PIPE, [0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(processes._servers[0].path)
        socket.send_fds(connection, [json.dumps(dataclasses.asdict(request)).encode()], [1, 2, 0])
        answer, (pidfd,), _, _ = socket.recv_fds(connection, 1024, 1)
        assert answer.startswith(b"started")
        connection.shutdown(socket.SHUT_RDWR)
        assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    assert not (folder / "begun").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_stopped_server_ends_with_its_parent(temporary: Path) -> None:
    mark = uuid.uuid4().hex
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    with subprocess.Popen([sys.executable, "-c", CLIENT, "60"], env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        stopped(next(pid for pid in processes_marked(mark) if parent_of(pid) == client.pid))
        client.kill()
        wait_for(lambda: not processes_marked(mark), seconds=20)
    assert not list(temporary.iterdir())
