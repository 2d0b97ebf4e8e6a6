"""Processes forked by a server that has imported: each is what a fresh interpreter makes of the same command, and ends so."""

import json
import os
import signal
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
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import Forked, Processes, Server
from lockstep.launchers.stop_signals import STOP_SIGNALS

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose modules come first: here servers are quick, for there is no torch to import."""
    for name in ("torch", "lightning"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
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
    assert found == json.loads(said)
    assert found["argv"] == ["script.py", "a=1", "b c"]
    assert found["leads"]


ENDS = {
    "print('all is well')": 0,
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit(256 + 5)": 5,
    "import sys; sys.exit('why')": 1,
    "def f(): raise ValueError('why')\nf()": 1,
    "this is no Python": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "import os; os._exit(7)": 7,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import signal, time; signal.raise_signal(signal.SIGTERM); time.sleep(60)": -signal.SIGTERM,
    "import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit(2)": 2,
    "import threading, time; threading.Thread(target=lambda: [time.sleep(0.2), print('later')]).start()": 0,
}


def test_it_ends_as_a_fresh_one_does(start: Start) -> None:
    for text, code in ENDS.items():
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


def pids(processes: Processes) -> list[int]:
    return [server._process.pid for server in processes._servers]


def test_one_server_serves_all_of_one_environment(start: Start, processes: Processes) -> None:
    """What it forks is this process's child, as it has forked it or started it itself."""
    text, env = "import os; print(os.getppid())", {MARK: "one", "OMP_NUM_THREADS": "1"}
    own = (0, f"{os.getpid()}\n")
    assert end_of(start(text, **env)) == own
    first = pids(processes)
    assert end_of(start(text, **env, CUDA_VISIBLE_DEVICES="1", RANK="1")) == own
    assert pids(processes) == first
    assert end_of(start(text, **env | {"OMP_NUM_THREADS": "2"})) == own  # read when libraries are loaded
    both = pids(processes)
    assert (len(both), both[:1]) == (2, first)
    assert end_of(start(text, **env)) == own
    assert pids(processes) == both


COUNTED = "import os\nwith open('imported', 'a') as file: file.write(f'{os.getpid()} ')"
JOB = """
import os, sys
from lockstep.launchers.environment import PARENT_PIPE
from lockstep.launchers.processes import PROCESSES
open("rank.py", "w").write("import sys, torch._dynamo; print('torch._dynamo' in sys.modules)")
for _ in range(2):
    PROCESSES.start([sys.executable, "rank.py"], dict(os.environ), (PARENT_PIPE, os.pipe()[0])).wait()
"""


def test_a_job_has_its_ranks_forked_without_another_import(start: Start, folder: Path) -> None:
    write_dynamo(folder, COUNTED)
    assert end_of(start(JOB, **{MARK: "one"})) == (0, "True\nTrue\n")
    assert len((folder / "imported").read_text().split()) == 1


def write_dynamo(folder: Path, text: str) -> None:
    """The module torch._dynamo, as the working directory has it."""
    (folder / "torch.py").unlink(missing_ok=True)
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "_dynamo.py").write_text(text)
    os.utime(folder / "torch" / "_dynamo.py", ns=(time.time_ns(), time.time_ns()))


def test_code_that_has_changed_is_imported_anew(start: Start, folder: Path) -> None:
    text = "import sys; print('torch._dynamo' in sys.modules); import torch._dynamo; print(torch._dynamo.VALUE)"
    for value in ("first", "second"):
        write_dynamo(folder, f"VALUE = {value!r}")
        assert end_of(start(text, **{MARK: "one"})) == (0, f"True\n{value}\n")


WAITS = "import os, sys, time; print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nsys.exit(5)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_runs_goes_on_without_its_server(number: int, start: Start, processes: Processes, monkeypatch: Any) -> None:
    """Then there is another server; and what a stopped one would still fork never begins."""
    process = start(WAITS, **{MARK: "one"})
    wait_for(lambda: Path("output").read_text() == "up\n")
    (server,) = pids(processes)
    os.kill(server, number)
    wait_for(lambda: Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] in "ZT")
    assert process.poll() is None
    Path("go").touch()
    assert end_of(process) == (5, "up\n")
    monkeypatch.setattr(launchers, "PATIENCE", 0.3)
    monkeypatch.setattr(Server, "start", slowly(Server.start, monkeypatch))
    assert end_of(start("open('begun', 'a').write('x')", **{MARK: "one"}))[0] == 0
    assert (len(pids(processes)), server in pids(processes)) == (1, False)
    assert Path("begun").read_text() == "x"


def slowly(begin: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new server may take its time to import."""

    def patient(*arguments: Any) -> Any:
        monkeypatch.setattr(launchers, "PATIENCE", 120)
        return begin(*arguments)

    return patient


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
        assert len(processes_marked(mark)) == 4  # the job has a server of its own
        client.kill()
        wait_for(lambda: not processes_marked(mark))
    assert not list(temporary.iterdir())


CALLED = "import os; print(open('/proc/self/cmdline').read().rstrip(chr(0)))"


@pytest.mark.skipif(find_spec("setproctitle") is None, reason="without setproctitle processes keep their names")
def test_processes_say_what_they_are(start: Start, processes: Processes) -> None:
    """A fork is its command until it says that it is a rank or a job; /proc/PID/environ is as it was, and the name in
    /proc/PID/stat is one word, as SLURM's proctrack/linuxproc reads it."""
    assert end_of(start(CALLED, "a=1", "b c", **{MARK: "one"})) == (0, f"{sys.executable} script.py a=1 'b c'\n")
    (server,) = pids(processes)
    assert Path(f"/proc/{server}/cmdline").read_text().rstrip("\0") == "lockstep import server"
    text = "from lockstep.launchers.process_title import set_title; import os; set_title('lockstep rank 1/4 RUN'); " + CALLED
    text += f"; print('{MARK}=one' in open('/proc/self/environ').read(), 'SPT_NOENV' in os.environ)"
    text += "; print(open('/proc/self/stat').read().split()[3] == str(os.getppid()))"
    assert end_of(start(text, **{MARK: "one"}))[1] == "lockstep rank 1/4 RUN\nTrue False\nTrue\n"


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


def test_what_is_forked_for_one_who_has_given_up_never_begins(start: Start, processes: Processes) -> None:
    """It waits for a word, which does not come."""
    assert end_of(start("", **{MARK: "one"}))[0] == 0
    (server,) = pids(processes)
    os.kill(server, signal.SIGSTOP)
    with STOP_SIGNALS.deferring() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: received)
        assert isinstance(process := start("open('begun', 'a').write('x')", **{MARK: "one"}), subprocess.Popen)
    assert end_of(process)[0] == 0
    os.kill(server, signal.SIGCONT)
    assert end_of(start("open('begun', 'a').write('y')", **{MARK: "one"}))[0] == 0
    assert pids(processes) == [server]
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
        wait_for(lambda: not processes_marked(mark), seconds=20)
    assert not list(temporary.iterdir())
