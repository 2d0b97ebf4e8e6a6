"""Ranks and jobs that are forked from a server train to the same bits as fresh interpreters; none outlives its parent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences, state
from commands import ROOT, environment, living_in, python, started, status, train
from waiting import wait_for

from lockstep.launchers.processes import is_alive

pytestmark = pytest.mark.slow
OPTIONS = ("trainer.devices=2", "trainer.max_epochs=2", "model=mlp", "model.net.dropout=0.2")
OPTIONS += ("++callbacks.pictures=null", "logger=csv", "test=false")
SLOW = "+callbacks.slow={_target_:faults.Slow}"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fresh")
    train(*OPTIONS, "hydra.run.dir=run", "fresh_processes=true", cwd=folder, fresh=True, code=0)
    return state(folder / "run")


def test_jobs_and_their_ranks_train_to_the_bits_of_fresh_ones(fresh: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("-m", "trainer.accelerator=cpu", *OPTIONS, "seed=0", "name=a,b", "hydra.sweep.dir=sweep")
    done = python(ROOT / "train.py", *arguments, cwd=tmp_path, fresh=True, code=0)
    assert "fresh interpreters" not in done.stderr
    states = [state(path.parent) for path in tmp_path.glob("sweep/*/metrics.json")]
    assert len(states) == 2
    for one in states:
        assert not differences(fresh, one)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_goes_on_whatever_its_server_receives(number: int, fresh: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("trainer.accelerator=cpu", *OPTIONS, "hydra.run.dir=run", SLOW)
    with started(ROOT / "train.py", *arguments, cwd=tmp_path, fresh=True) as run:
        wait_for((tmp_path / "run" / "training").exists)
        os.kill(server(tmp_path), number)
        _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert status(tmp_path / "run")["status"] == "finished"
    assert not differences(fresh, state(tmp_path / "run"))


def server(folder: Path) -> int:
    (pid,) = [pid for pid in living_in(folder) if b"fork server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


IMPORTS = """
import threading, torch
from pathlib import Path
asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, lambda name=name: asked.append(name) or 0)
from lockstep.launchers.preload import MODULES
import logging, sys
print(logging.root.handlers, [name for name in ("lightning.pytorch", "lightning.fabric") if logging.getLogger(name).handlers])
print(asked, torch.cuda.is_initialized(), [*set(MODULES) - {*sys.modules}])
print(threading.active_count(), len([*Path("/proc/self/task").iterdir()]))
sys.stdout.flush()
"""


def test_what_is_imported_touches_no_gpu_starts_no_thread_and_prints_nothing(tmp_path: Path) -> None:
    done = python("-c", f"import os\nif not os.fork():\n    exec({IMPORTS!r})\nos.wait()", cwd=tmp_path)  # not a group's leader
    assert done.stdout.splitlines() == ["[] []", "[] False []", "1 1"], done.stderr


SLEEPER = """
import os, time
from lockstep.launchers.processes import start
start(time.sleep, 60, title="sleeper", environment=dict(os.environ))
time.sleep(60)
"""


def test_a_server_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time, pathlib; pathlib.Path('importing').touch(); time.sleep(0.3); 1 / 0")
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    with subprocess.Popen([sys.executable, "-c", SLEEPER], cwd=tmp_path, env=env) as process:
        wait_for((tmp_path / "importing").exists)
        process.kill()
        wait_for(lambda: not living_in(tmp_path), seconds=60)


PROGRAM = """
import atexit, json, os, signal, sys, threading, time
from pathlib import Path
from lockstep.launchers.processes import importable, start

with open("imported", "a") as file:
    print(os.environ.get("GIVEN"), file=file)

def tell(file):
    import torch
    file.write_text(json.dumps({
        "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "given": os.environ.get("GIVEN"), "path": "PATH" in os.environ,
        "threads": torch.get_num_threads(), "cores": sorted(os.sched_getaffinity(0)), "frozen": "lightning" in sys.modules,
        "title": open("/proc/self/cmdline").read().strip(chr(0)), "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }))
    print("said", __name__, flush=True)

def end(code):
    atexit.register(print, "last")
    threading.Thread(target=lambda: (time.sleep(0.3), print("later"))).start()
    print("first")
    if code == "bug":
        raise ValueError(code)
    sys.exit(code)

def begin(function, argument, output, **options):
    environment = {"GIVEN": "x y", "OMP_NUM_THREADS": "2", "PYTHONPATH": os.environ["PYTHONPATH"]}
    return start(importable(function), argument, title="a job", environment=environment, output=Path(output), **options)

def ended(process):
    while (code := process.poll()) is None:
        time.sleep(0.02)
    return code

if __name__ == "__main__":
    for fresh in (False, True):
        assert ended(begin(tell, Path(f"told.{fresh}"), "output", cores=[0], fresh=fresh)) == 0
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process begins
    asked = begin(end, 0, "output.asked", fresh=True)
    asked.send_signal(signal.SIGINT)
    print("asked", ended(asked))
    for code in (0, 5, "why", "bug"):
        print(code, ended(begin(end, code, f"output.{code}")))
"""


def test_a_process_is_what_a_fresh_one_is_and_ends_as_one(tmp_path: Path) -> None:
    """The program's module is imported once in each, and sees the environment that the process is given."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = python("program.py", cwd=tmp_path)
    told, other = (json.loads((tmp_path / f"told.{fresh}").read_text()) for fresh in (False, True))
    assert (told.pop("frozen"), other.pop("frozen")) == (True, False)
    assert told == other
    expected = {"leads": True, "given": "x y", "path": False, "threads": 2, "cores": [0], "title": "a job"}
    assert told == expected | {"term": True}, done.stderr
    assert (tmp_path / "output").read_text() == "said __mp_main__\n" * 2
    assert (tmp_path / "imported").read_text().splitlines() == ["None", *["x y"] * 6]
    assert done.stdout.splitlines() == ["asked -2", "0 0", "5 5", "why 1", "bug 1"], done.stderr
    assert (tmp_path / "output.asked").read_text() == ""
    assert "Traceback" not in done.stderr
    for code in ("0", "5", "why", "bug"):
        lines = (tmp_path / f"output.{code}").read_text().splitlines()
        assert [line for line in lines if line in ("first", "later", "last")] == ["first", "later", "last"]
    assert "why" in (tmp_path / "output.why").read_text()
    assert "ValueError: bug" in (tmp_path / "output.bug").read_text()


JOB = """
import atexit, os, signal, sys, tempfile, time
from pathlib import Path
from lockstep.launchers.processes import start
import torch

def rank(number):
    Path(f"rank{number}").write_text(str(os.getpid()))
    time.sleep(60 if number else 0)

def job():
    atexit.register(Path("ended").touch)
    Path("folder").mkdir()
    kept = tempfile.TemporaryDirectory(dir="folder")
    ranks = [start(rank, number, title=f"rank {number}", environment=dict(os.environ)) for number in range(3)]
    while ranks[0].poll() is None:
        time.sleep(0.02)
    Path("left").write_text(f"{Path('ended').exists()} {Path(kept.name).exists()}")
    time.sleep(60)

if __name__ == "__main__":
    process = start(job, title="job", environment=dict(os.environ), output=Path("output"))
    Path("job").write_text(str(process.pid))
    time.sleep(60)
"""


def test_a_job_that_is_killed_takes_suspended_ranks_with_it_and_its_exit_functions_are_not_theirs(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOB)
    (tmp_path / "starts.py").write_text(JOB.replace("start(job,", "start(jobs.job,").replace("import torch", "import jobs"))
    with started("starts.py", cwd=tmp_path):
        wait_for(lambda: all((tmp_path / name).exists() for name in ("left", "rank1", "rank2", "job")))
        assert (tmp_path / "left").read_text() == "False True", (tmp_path / "output").read_text()
        ranks = [int((tmp_path / name).read_text()) for name in ("rank1", "rank2")]
        os.kill(ranks[1], signal.SIGSTOP)
        os.kill(int((tmp_path / "job").read_text()), signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, ranks)), seconds=20)


def test_a_request_while_the_server_imports_is_met(tmp_path: Path) -> None:
    arguments = ("trainer.accelerator=cpu", *OPTIONS, "trainer.max_epochs=50", "hydra.run.dir=run", SLOW)
    with started(ROOT / "train.py", *arguments, cwd=tmp_path, fresh=True) as run:
        wait_for((tmp_path / "run" / "status.json").exists)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=100) == 75
