"""What becomes of servers and of what they have forked when one of them, or their parent, dies, hangs or is asked to stop."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from commands import MARK, environment, processes_marked
from forks import Start, pids, wait_for_end
from waiting import wait_for

from lockstep.extras.import_server import servers as client
from lockstep.extras.import_server.servers import ImportServers, Server
from lockstep.launchers.stop_signals import STOP_SIGNALS

pytestmark = pytest.mark.usefixtures("folder", "servers")


WAITS = "import os, sys, time; print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nsys.exit(5)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_runs_goes_on_without_its_server(number: int, start: Start, servers: ImportServers, monkeypatch: Any) -> None:
    """Then there is another server; and what a stopped one would still fork never begins."""
    process = start(WAITS, **{MARK: "one"})
    wait_for(lambda: Path("output").read_text() == "up\n")
    (server,) = pids(servers)
    os.kill(server, number)
    wait_for(lambda: Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] in "ZT")
    assert process.poll() is None
    Path("go").touch()
    assert wait_for_end(process) == (5, "up\n")
    monkeypatch.setattr(client, "PATIENCE", 0.3)
    monkeypatch.setattr(Server, "start", slowly(Server.start, monkeypatch))
    assert wait_for_end(start("open('begun', 'a').write('x')", **{MARK: "one"}))[0] == 0
    assert (len(pids(servers)), server in pids(servers)) == (1, False)
    assert Path("begun").read_text() == "x"


def slowly(begin: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new server may take its time to import."""

    def patient(*arguments: Any) -> Any:
        monkeypatch.setattr(client, "PATIENCE", 120)
        return begin(*arguments)

    return patient


CLIENT = """
import os, sys, time
from pathlib import Path
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import start_process

reader, _ = os.pipe()
Path("script.py").write_text(
    "import time; from lockstep.launchers import rank; rank.attach_to_parent(); print('up', flush=True); time.sleep(60)"
)
start_process([sys.executable, "script.py"], dict(os.environ), (SWEEP_PIPE, reader), starts_ranks="ranks" in sys.argv)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("more", "count"), [((), 3), (("ranks",), 4)])  # one that starts ranks has a server of its own
def test_all_end_with_a_parent_that_is_killed(more: tuple[str, ...], count: int, temporary: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", CLIENT, "60", *more]
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        assert len(processes_marked(mark)) == count
        client.kill()
        wait_for(lambda: not processes_marked(mark))
    assert not list(temporary.iterdir())


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
        wait_for(lambda: not processes_marked(mark), seconds=30)
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
        assert wait_for_end(process) == (0, "all is well\n")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Processes are started as fresh interpreters, each of which imports torch anew: [Errno 2]")


def test_nobody_who_is_asked_to_stop_waits_for_a_server(start: Start) -> None:
    with STOP_SIGNALS.deferring() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: received)
        assert isinstance(process := start("print('all is well')"), subprocess.Popen)
    assert wait_for_end(process) == (0, "all is well\n")


def test_what_is_forked_for_one_who_has_given_up_never_begins(start: Start, servers: ImportServers) -> None:
    """It waits for a word, which does not come."""
    assert wait_for_end(start("", **{MARK: "one"}))[0] == 0
    (server,) = pids(servers)
    os.kill(server, signal.SIGSTOP)
    with STOP_SIGNALS.deferring() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: received)
        assert isinstance(process := start("open('begun', 'a').write('x')", **{MARK: "one"}), subprocess.Popen)
    assert wait_for_end(process)[0] == 0
    os.kill(server, signal.SIGCONT)
    assert wait_for_end(start("open('begun', 'a').write('y')", **{MARK: "one"}))[0] == 0
    assert pids(servers) == [server]
    assert Path("begun").read_text() == "xy"


def test_a_stopped_server_ends_with_its_parent(temporary: Path) -> None:
    mark = uuid.uuid4().hex
    env = environment(**{MARK: mark, "TMPDIR": str(temporary)})
    with subprocess.Popen([sys.executable, "-c", CLIENT, "60"], env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        for pid in processes_marked(mark):
            if b"server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)
        client.kill()
        wait_for(lambda: not processes_marked(mark), seconds=30)
    assert not list(temporary.iterdir())


FORKS_WHEN_INTERRUPTED = """
import os, signal
from lockstep.extras.import_server import server
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
server.become([], ".", lambda: server.give_server(None))
"""


def test_ctrl_c_while_a_command_is_given_its_server_is_heard() -> None:
    """Python drops what a handler raises while it forks."""
    command = [sys.executable, "-c", FORKS_WHEN_INTERRUPTED]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
