"""That the project trains, on two processes as on one."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TWO = ("trainer=cpu", "trainer.devices=2")


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_processes_train_a_step(tmp_path: Path) -> None:
    run("train.py", *TWO, "debug=fast", f"hydra.run.dir={tmp_path}/run")
    record = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (record["world_size"], record["steps"]) == (2, 1)


def test_two_processes_give_what_one_gives() -> None:
    run("-m", "lockstep", "parity", *TWO, "parity.steps=3")  # its exit code is 3 where they do not
