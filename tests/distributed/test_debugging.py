"""A debugger's prompt in rank zero: it answers, the watchdogs of all ranks wait, and Ctrl-C says what it does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, environment, status
from waiting import wait_for

pytestmark = pytest.mark.slow
OPTIONS = ("trainer=cpu", "trainer.max_epochs=1", "trainer.limit_train_batches=3", "test=false", "model=mlp", "hydra.run.dir=run")


@contextmanager
def begun(folder: Path, *overrides: str) -> Iterator["subprocess.Popen[str]"]:
    """A run at a prompt; what it says is in the files `said` and `errors`."""
    command = [sys.executable, str(ROOT / "train.py"), *OPTIONS, *overrides]
    options: Any = {"cwd": folder, "env": environment(), "stdin": subprocess.PIPE, "text": True, "start_new_session": True}
    with (
        (folder / "said").open("w") as said,
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=said, stderr=errors, **options) as process,
    ):
        try:
            wait_for(lambda: "(Pdb) " in (folder / "said").read_text(), seconds=150)
            yield process
        finally:
            process.kill()


def type_line(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_prompt_answers_the_watchdogs_wait_and_ctrl_c_says_what_it_does(devices: int, tmp_path: Path) -> None:
    prompt = "+callbacks.break={_target_:faults.Fault,rank:0,how:prompt,batch:1}"
    with begun(tmp_path, f"trainer.devices={devices}", "guards.watchdog.seconds=3", prompt) as run:
        time.sleep(8)
        type_line(run, "p 1000 * trainer.world_size + batch_idx")
        wait_for(lambda: f"(Pdb) {devices}001\n" in (tmp_path / "said").read_text())
        os.kill(run.pid, signal.SIGINT)
        wait_for(lambda: "At the debugger's prompt, type c." in (tmp_path / "errors").read_text())
        type_line(run, "c")
        assert run.wait(100) == 75, (tmp_path / "errors").read_text()
    assert not (tmp_path / "run" / ".debugged").exists()
    assert status(tmp_path / "run")["status"] == "preempted"
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()


def test_a_post_mortem_opens_where_all_ranks_have_raised(tmp_path: Path) -> None:
    fault = "+callbacks.fault={_target_:faults.Fault,rank:null,how:raise,batch:1}"
    with begun(tmp_path, "trainer.devices=2", "debug=pdb", fault) as run:
        time.sleep(5)  # longer than what ranks get once another one has failed
        type_line(run, "p batch_idx + 41")
        wait_for(lambda: "(Pdb) 42\n" in (tmp_path / "said").read_text())
        type_line(run, "q")
        assert run.wait(100) == 1
    assert "planted" in status(tmp_path / "run")["reason"]
