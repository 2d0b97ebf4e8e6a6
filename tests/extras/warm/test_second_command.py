"""A command that a warm server has forked is what `python SCRIPT ARGUMENTS` is, gets what its client gets, and ends so."""

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Home
from waiting import wait_for

IS_FORKED = "'lockstep.cli' in sys.modules"
LOOK = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "path": sys.path[0], "name": __name__, "file": __file__, "main": sys.modules["__main__"].look(),
    "cwd": os.getcwd(), "variables": dict(os.environ), "stdin": sys.stdin.read(), "umask": os.umask(0o77), "nice": os.nice(0),
    "cores": sorted(os.sched_getaffinity(0)), "files": [open(f"/proc/self/limits").read(), open("/proc/self/cgroup").read()],
    "handlers": [str(signal.getsignal(number)).partition(" at ")[0] for number in range(1, 32)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "title": open("/proc/self/cmdline").read().replace(chr(0), " ").split(" ", 1)[1].strip(),
    "open": [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3, 99) if os.path.lexists(f"/proc/self/fd/{n}")],
    "is_forked": IS_FORKED,
}))
""".replace("IS_FORKED", IS_FORKED).replace("\nprint", "\ndef look(): return __name__\nprint")


def look(home: Home, *arguments: str, **more: Any) -> dict[str, Any]:
    code, output, errors = home.call(LOOK, *arguments, given="said\n", **more)
    assert (code, errors) == (0, "")
    return json.loads(output)


def test_it_is_what_a_fresh_one_is(home: Home) -> None:
    forked, fresh = look(home, "a=1", "b c"), look(home, "a=1", "warm=false")
    assert (forked.pop("is_forked"), fresh.pop("is_forked")) == (True, False)
    assert forked.pop("argv") == ["a=1", "b c"]
    assert fresh.pop("argv") == ["a=1", "warm=false"]
    assert (forked.pop("title"), fresh.pop("title")) == ("script.py a=1 'b c'", "script.py a=1 warm=false")
    assert (forked.pop("open"), fresh.pop("open")) == (["socket"], [])  # to the server of its ranks
    imported = {"PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
    for one in (forked, fresh):
        one["variables"] = {name: value for name, value in one["variables"].items() if name not in imported}
    assert forked == fresh
    assert forked["stdin"] == "said\n"


@pytest.mark.parametrize(
    "unlike",
    [("nohup",), ("nice", "-n", "3"), ("env", "A=1"), ("bash", "-c", 'ulimit -n 99; exec "$@"', "bash"), ("taskset", "-c", "0")],
    ids=str,
)
def test_a_command_in_other_surroundings_runs_by_itself_or_as_it_would(unlike: tuple[str, ...], home: Home) -> None:
    """nohup's is forked, and ignores SIGHUP."""
    found = look(home, prefix=unlike)
    fresh = look(home, "warm=false", prefix=unlike)
    assert found["is_forked"] == (unlike == ("nohup",))
    for name in ("handlers", "nice", "files", "cores"):
        assert found[name] == fresh[name]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_with_a_closed_stream_runs_by_itself(closed: str, home: Home) -> None:
    """The socket to the server would be that stream, and what the command prints a message to its keeper."""
    text = f"import sys; print('said'); sys.exit(3 if {IS_FORKED} else 7)"
    assert home.call(text, prefix=("bash", "-c", f'exec "$@" {closed}', "bash"))[0] == 7


@pytest.mark.parametrize("declines", ["warm=False", "fresh_processes=TRUE"])
def test_a_command_declines_in_hydra_s_words(declines: str, home: Home) -> None:
    assert home.call(f"import sys; print({IS_FORKED})", declines) == (0, "False\n", "")


ENDS = {
    "print('all is well')": (0, "all is well\n", ""),
    "import sys; sys.exit('why')": (1, "", "why\n"),
    "import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit(75)": (75, "first\nlast\n", ""),
    "import os; os._exit(7)": (7, "", ""),
    "import os; os.kill(os.getpid(), 9)": (-signal.SIGKILL, "", ""),
    "import signal; signal.signal(15, signal.SIG_DFL); signal.raise_signal(15)": (-signal.SIGTERM, "", ""),
}


def test_a_server_that_is_stopped_keeps_nobody_waiting_for_the_end_of_what_a_command_says(home: Home) -> None:
    """The command has run by itself then, and who reads its output, `tee` say, sees that it has ended."""
    os.kill(home.server, signal.SIGSTOP)
    try:
        assert home.call(f"import sys; print({IS_FORKED})") == (0, "False\n", "")
    finally:
        os.kill(home.server, signal.SIGCONT)


def test_it_ends_as_a_fresh_one_does(home: Home) -> None:
    for text, ended in ENDS.items():
        assert home.call(f"import sys; assert {IS_FORKED}\n{text}") == ended
    code, _, errors = home.call("raise KeyboardInterrupt")
    assert (code, errors.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


HEARS = f"""
import os, signal, sys, time
assert {IS_FORKED}
heard = []
for number in (1, 2, 3, 10, 12, 15, 28):
    signal.signal(number, lambda number, _: heard.append(number))
print(os.getpid(), flush=True)
while 12 not in heard:
    time.sleep(0.01)
    while heard and heard[0] != 12:
        print(heard.pop(0), flush=True)
"""


START = """
import os, sys
from pathlib import Path
from lockstep.extras.import_server.servers import SERVERS
Path("rank.py").write_text(LOOK)
reader, _ = os.pipe()
rank = SERVERS.start([sys.executable, "rank.py"], dict(os.environ), ("LIFELINE", reader), (None, None), [0], False)
sys.exit(rank.wait(60))
"""
AT_SIGNALS = """
import json, os, signal, sys
ignored = [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN]
own = os.getsid(0) == os.getpid()
print(json.dumps([IS_FORKED, own, ignored, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]))
""".replace("IS_FORKED", IS_FORKED)


@pytest.mark.parametrize("prefix", [(), ("nohup",)])
def test_its_ranks_get_the_signals_that_a_fresh_one_s_do(prefix: tuple[str, ...], home: Home) -> None:
    text = START.replace("LOOK", repr(AT_SIGNALS))
    forked, fresh = (json.loads(home.call(text, *more, prefix=prefix)[1]) for more in ((), ("warm=false",)))
    assert forked == fresh
    assert forked[0]
    assert forked[-1] == []


def test_what_its_client_gets_it_gets(home: Home) -> None:
    with home.start(HEARS) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        for number in (number for number in (1, 2, 3, 10, 15, 28) if signal.getsignal(number) is not signal.SIG_IGN):
            process.send_signal(number)  # what is ignored here, by nohup say, it ignores, too
            assert int(process.stdout.readline()) == number
        process.send_signal(12)
        assert process.wait(60) == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_client_hangs_it_up_stopped_or_not(home: Home) -> None:
    for is_stopped in (False, True):
        with home.start(HEARS) as process:
            assert process.stdout is not None
            command = int(process.stdout.readline())
            if is_stopped:
                process.send_signal(signal.SIGSTOP)
                wait_for(lambda pid=command: state(pid) == "T")
            process.kill()
            process.wait(60)
            assert process.stdout.readline() == "1\n"
            os.kill(command, 12)
            assert process.stdout.read() == ""


def test_a_killed_keeper_hangs_it_up_and_its_client_says_so(home: Home) -> None:
    with home.start(HEARS) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        (keeper,) = home.processes(f"lockstep warm keeper {command}")
        os.kill(keeper, signal.SIGKILL)
        assert process.stdout.readline() == "1\n"
        os.kill(command, 12)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (1, "")
        assert errors == "The command was lost: its server's process has died. What it has saved can be resumed.\n"


def test_at_a_terminal_it_is_interrupted_stopped_continued_and_told_of_its_size(home: Home) -> None:
    person, terminal = pty.openpty()

    def lead() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    streams = {"stdin": terminal, "stderr": terminal, "preexec_fn": lead}
    # below a shell with job control: of a group that nobody could continue the kernel stops nothing
    with home.start(HEARS, prefix=("bash", "-mc", '"$@"; read; fg; exit $?', "bash"), **streams) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        os.write(person, b"\x03")
        assert process.stdout.readline() == "2\n"
        fcntl.ioctl(person, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        assert process.stdout.readline() == "28\n"
        os.write(person, b"\x1a")
        wait_for(lambda: state(command) == "T")
        os.write(person, b"\n")
        process.stdout.readline()  # what fg says
        wait_for(lambda: state(command) in "SR")
        os.kill(command, 12)
        assert process.wait(60) == 0
    for descriptor in (person, terminal):
        os.close(descriptor)


def test_a_server_ends_when_it_is_told_to_and_what_it_has_forked_goes_on(make_home: Callable[[], Home]) -> None:
    home = make_home()
    assert home.script("warm.py", "list") == "There is no server.\n"
    home.leave_server()
    server = home.server
    assert home.script("warm.py", "list") == f"running: {server}\n"
    with home.start(HEARS) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert home.script("warm.py", "stop") == f"ended: {server}\n"
        wait_for(lambda: not home.processes("lockstep warm server"))
        assert not home.sockets
        process.send_signal(12)
        assert process.wait(60) == 0
    assert home.call(f"import sys; print({IS_FORKED})") == (0, "False\n", "")


def test_a_server_ends_when_a_package_was_installed_for_the_user(make_home: Callable[[], Home]) -> None:
    """By `pip install --user -e`, say, after which a fresh interpreter finds modules in more folders."""
    home = make_home()
    home.environment["PYTHONUSERBASE"] = str(home.folder / "base")
    where = [sys.executable, "-c", "import site; print(site.getusersitepackages(), end='')"]
    packages = Path(subprocess.check_output(where, env=home.environment, text=True))
    packages.mkdir(parents=True)
    home.leave_server()
    assert home.call(f"import sys; print({IS_FORKED})") == (0, "True\n", "")
    (packages / "mine.pth").write_text("/somewhere\n")
    assert home.call(f"import sys; print({IS_FORKED})") == (0, "False\n", "")


def test_a_server_whose_runtime_directory_was_removed_ends_and_leaves_the_socket_of_the_next_one(
    make_home: Callable[[], Home],
) -> None:
    """As by a logout, and a login after it."""
    home = make_home()
    home.leave_server()
    first = home.server
    shutil.rmtree(home.runtime / "lockstep")
    home.leave_server()
    wait_for(lambda: first not in home.processes("lockstep warm server"))
    assert home.sockets
    assert home.call(f"import sys; print({IS_FORKED})") == (0, "True\n", "")


@pytest.mark.slow
def test_a_server_ends_when_nothing_was_asked_of_it_but_not_while_a_command_runs(make_home: Callable[[], Home]) -> None:
    home = make_home()
    home.leave_server(minutes=8 / 60)
    with home.start("import sys\n" + f"print({IS_FORKED}, flush=True)\nsys.stdin.read()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(10)
        assert home.sockets
        process.communicate("", timeout=60)
    wait_for(lambda: not home.processes("lockstep warm server"))
    assert not home.sockets


def test_changed_code_ends_the_server_and_the_command_runs_by_itself(make_home: Callable[[], Home]) -> None:
    home = make_home()
    home.leave_server()
    home.leave_server()  # there is one
    assert home.server
    text = f"import sys; print({IS_FORKED}); import torch._dynamo; print(vars(torch._dynamo).get('VALUE'))"
    assert home.call(text)[1] == "True\nNone\n"
    (home.folder / "omegaconf.py").touch()  # which a fresh interpreter would import instead
    assert home.call(f"import sys; print({IS_FORKED})")[1] == "False\n"
    (home.folder / "omegaconf.py").unlink()
    (home.folder / "torch" / "_dynamo.py").write_text("VALUE = 1")
    assert home.call(text)[1] == "False\n1\n"
    wait_for(lambda: not home.processes("lockstep warm server"))
    assert not home.sockets
