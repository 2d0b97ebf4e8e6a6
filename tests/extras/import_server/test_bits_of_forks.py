"""Ranks and jobs that are forked from a server train to the same bits as fresh interpreters, whatever becomes of the server."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences, state
from commands import MARK, ROOT, processes_marked, python, started, train
from waiting import wait_for

pytestmark = pytest.mark.slow
OPTIONS = (
    "trainer.devices=2",
    "trainer.max_epochs=2",
    "model=mlp",
    "model.net.dropout=0.2",
    "++callbacks.pictures=null",
    "logger=csv",
    "test=false",
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fresh")
    done = train(*OPTIONS, "hydra.run.dir=run", "fresh_processes=true", cwd=folder, fresh=True)
    assert done.returncode == 0, done.stderr
    return state(folder / "run")


def test_jobs_and_their_ranks_train_to_the_bits_of_fresh_ones(fresh: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("-m", "trainer.accelerator=cpu", *OPTIONS, "seed=0", "name=a,b", "hydra.sweep.dir=sweep")
    done = python(ROOT / "train.py", *arguments, cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    assert "fresh interpreters" not in done.stderr
    states = [state(path.parent) for path in tmp_path.glob("sweep/*/metrics.json")]
    assert len(states) == 2
    for one in states:
        assert not differences(fresh, one)


def test_a_run_goes_on_without_its_server(fresh: dict[str, Any], tmp_path: Path) -> None:
    mark = "".join(f"{byte:02x}" for byte in os.urandom(8))
    arguments = ("trainer.accelerator=cpu", *OPTIONS, "hydra.run.dir=run", "+callbacks.slow={_target_:faults.Slow}")
    with started(ROOT / "train.py", *arguments, cwd=tmp_path, **{MARK: mark}) as run:
        wait_for((tmp_path / "run" / "training").exists)
        (server,) = [pid for pid in processes_marked(mark) if b"server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(server, signal.SIGKILL)
        _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    assert not differences(fresh, state(tmp_path / "run"))


IMPORTS = """
import threading, torch
from pathlib import Path
asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, lambda name=name: asked.append(name) or 0)
from lockstep.extras.import_server.server import PRELOADED, Imports
Imports()
import logging, sys
print(logging.root.handlers, [name for name in ("lightning.pytorch", "lightning.fabric") if logging.getLogger(name).handlers])
print(asked, torch.cuda.is_initialized(), [*set(PRELOADED) - {*sys.modules}])
print(threading.active_count(), len([*Path("/proc/self/task").iterdir()]))
"""


def test_what_is_imported_touches_no_gpu_starts_no_thread_and_prints_nothing(tmp_path: Path) -> None:
    done = python("-c", IMPORTS, cwd=tmp_path)
    assert done.stdout.splitlines() == ["[] []", "[] False []", "1 1"], done.stderr
