"""Runs that are forked from a warm server train to the bits of those that are not, stop and resume as they do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from bitwise import differences, state
from capabilities import is_there
from commands import ROOT
from conftest import Home
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FIXED = (
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "model=mlp",
    "model.net.dropout=0.2",
    "logger=csv",
    "++callbacks.pictures=null",
)
SLOW = "+callbacks.slow={_target_: faults.Slow}"


def call(home: Home, *arguments: str, code: int = 0) -> str:
    with begun(home, *arguments) as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == code, output + errors
    return output + errors


def begun(home: Home, program: str, *arguments: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, str(ROOT / program), *arguments], subprocess.PIPE
    return subprocess.Popen(command, cwd=home.folder, env=home.environment, stdout=pipe, stderr=pipe, text=True)


def test_a_run_leaves_a_server_and_the_next_commands_are_forked(make_home: Callable[[], Home]) -> None:
    home = make_home()
    home.use_torch()
    call(home, "train.py", *FIXED, "hydra.run.dir=first", "warm=true")
    wait_for(lambda: home.sockets, pause=0.2)
    server = home.server
    with begun(home, "train.py", *FIXED, "hydra.run.dir=second", SLOW) as run:
        wait_for((home.folder / "second" / "training").exists)
        assert home.processes("lockstep warm keeper")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 75
    assert json.loads((home.folder / "second" / "status.json").read_text())["status"] == "preempted"
    call(home, "train.py", "resume=second")
    assert not differences(state(home.folder / "first"), state(home.folder / "second"))
    assert "unknown key" in call(home, "train.py", "model.net.nowidth=0", code=2)
    if is_there("saved_runs"):
        call(home, "scripts/evaluate.py", "second", "trainer.devices=2")
        (metrics,) = (home.folder / "second" / "evaluations").glob("*/metrics.json")
        assert json.loads(metrics.read_text())["world_size"] == 2
    call(home, "train.py", "-m", *FIXED, "trainer.max_epochs=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert len([*(home.folder / "sweep").glob("*/metrics.json")]) == 2
    assert home.server == server
    os.kill(server, signal.SIGTERM)
