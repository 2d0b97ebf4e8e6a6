"""Processes forked by a server that has imported: each is what a fresh interpreter makes of the same command, and ends so."""

import json
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import MARK
from forks import Start, pids, wait_for_end
from waiting import wait_for

from lockstep.extras.import_server.servers import Forked, ImportServers
from lockstep.launchers.inherited_config import FILE

pytestmark = pytest.mark.usefixtures("folder", "servers")


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
    code, said = wait_for_end(process)
    result = json.loads(said)
    assert code == 0
    code, said = wait_for_end(start(LOOK, "a=1", "b c", fresh=True, **mark))
    assert result == json.loads(said)
    assert result["argv"] == ["script.py", "a=1", "b c"]
    assert result["leads"]


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
        ended = wait_for_end(process)
        assert ended[0] == code
        assert ended == wait_for_end(start(text, fresh=True))


def test_it_can_be_asked_to_end(start: Start) -> None:
    process = start("import time; print('up', flush=True); time.sleep(60)")
    wait_for(lambda: Path("output").read_text() == "up\n")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert wait_for_end(process) == (-signal.SIGTERM, "up\n")
    process.send_signal(signal.SIGTERM)  # which reaches nobody


def test_one_server_serves_all_of_one_environment(start: Start, servers: ImportServers) -> None:
    """What it forks is this process's child, as it has forked it or started it itself."""
    text, env = "import os; print(os.getppid())", {MARK: "one", "OMP_NUM_THREADS": "1"}
    own = (0, f"{os.getpid()}\n")
    assert wait_for_end(start(text, **env)) == own
    first = pids(servers)
    assert wait_for_end(start(text, **env, CUDA_VISIBLE_DEVICES="1", RANK="1", HYDRA_FULL_ERROR="1")) == own
    assert pids(servers) == first
    assert wait_for_end(start(text, **env | {"OMP_NUM_THREADS": "2"})) == own  # read when libraries are loaded
    both = pids(servers)
    assert (len(both), both[:1]) == (2, first)
    assert wait_for_end(start(text, **env)) == own
    assert pids(servers) == both


COUNTED = "import os\nwith open('imported', 'a') as file: file.write(f'{os.getpid()} ')"
JOB = """
import os, sys
from lockstep.launchers.environment import PARENT_PIPE
from lockstep.launchers.processes import start_process
open("rank.py", "w").write("import sys, torch._dynamo; print('torch._dynamo' in sys.modules)")
for _ in range(2):
    start_process([sys.executable, "rank.py"], dict(os.environ), (PARENT_PIPE, os.pipe()[0])).wait()
"""


def test_a_job_has_its_ranks_forked_without_another_import(start: Start, folder: Path) -> None:
    write_dynamo(folder, COUNTED)
    assert wait_for_end(start(JOB, **{MARK: "one"})) == (0, "True\nTrue\n")
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
        assert wait_for_end(start(text, **{MARK: "one"})) == (0, f"True\n{value}\n")


def test_what_the_first_config_names_in_this_package_is_imported_before_it_forks(start: Start, folder: Path) -> None:
    """Modules of the user's own may do more than be imported: the process that needs one imports it."""
    (folder / "own.py").touch()
    targets = {"sweep": {"_target_": "lockstep.sweeps.hydra_callback.EndSweep"}, "own": {"_target_": "own.Class"}}
    where = f"hydra.run.dir={folder}"
    content = {"arguments": ["script.py", where], "config": {"callbacks": targets, "hydra": {}}}
    (folder / FILE).write_text(json.dumps(content))
    text = "import sys; print([name in sys.modules for name in ('lockstep.sweeps.hydra_callback', 'own')])"
    assert wait_for_end(start(text, where, **{MARK: "one"})) == (0, "[True, False]\n")


def test_what_its_imports_take_apart_at_the_end_stays_for_the_next(start: Start, folder: Path) -> None:
    write_dynamo(folder, "import weakref\nclass Shared: pass\nSHARED = Shared()\nweakref.finalize(SHARED, print, 'shared')")
    text = "import weakref\nclass Own: pass\nown = Own()\nweakref.finalize(own, print, 'own')"
    assert wait_for_end(start(text, **{MARK: "one"})) == (0, "own\n")


CALLED = "import os; print(open('/proc/self/cmdline').read().rstrip(chr(0)))"


@pytest.mark.skipif(find_spec("setproctitle") is None, reason="without setproctitle processes keep their names")
def test_processes_say_what_they_are(start: Start, servers: ImportServers) -> None:
    """A fork is its command until it says that it is a rank or a job; /proc/PID/environ is as it was, and the name in
    /proc/PID/stat is one word, as SLURM's proctrack/linuxproc reads it."""
    assert wait_for_end(start(CALLED, "a=1", "b c", **{MARK: "one"})) == (0, f"{sys.executable} script.py a=1 'b c'\n")
    (server,) = pids(servers)
    assert Path(f"/proc/{server}/cmdline").read_text().rstrip("\0") == "lockstep import server"
    text = (
        "from lockstep.extras.import_server.process_title import set_title; import os; set_title('lockstep rank 1/4 RUN'); "
        + CALLED
    )
    text += f"; print('{MARK}=one' in open('/proc/self/environ').read(), 'SPT_NOENV' in os.environ)"
    text += "; print(open('/proc/self/stat').read().split()[3] == str(os.getppid()))"
    assert wait_for_end(start(text, **{MARK: "one"}))[1] == "lockstep rank 1/4 RUN\nTrue False\nTrue\n"
