"""hydra.launcher.detach=true: a sweep whose command has ended, on a real cluster of two nodes."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, TIMEOUT, environment, python
from ray_nodes import running_nodes
from waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
PROGRAM, SWEEP = ROOT / "tests" / "support" / "fakes" / "program.py", ROOT / "scripts" / "sweep.py"
WAITS = "seed=8"  # of program.py: it waits for ever after two steps


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes.address


class Left:
    """A sweep that was left to the cluster, and what is said of it."""

    def __init__(self, folder: Path, address: str, *overrides: str) -> None:
        (folder / "journal").mkdir()
        self.folder, self.env = folder, {"RAY_ADDRESS": address, "JOURNAL": str(folder / "journal")}
        places = ("hydra/launcher=ray", f"hydra.launcher.address={address}", "hydra.sweep.dir=sweep")
        self.command = (PROGRAM, "-m", *places, "trainer=cpu", *overrides)

    def call(self, *more: str, **env: str) -> str:
        """Runs the command to its end. The jobs that have begun by then go on: nobody asks here what it has left running."""
        given: dict[str, Any] = {"env": environment(**self.env, **env), "timeout": TIMEOUT, "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, *map(str, self.command), *more], cwd=self.folder, **given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ask(self, what: str, *more: str) -> str:
        done = python(SWEEP, what, "sweep", *more, cwd=self.folder, fresh=True, **self.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def processes(self) -> dict[int, str]:
        """The jobs that run, with their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().decode().replace("\0", " ")
            except OSError:
                continue
            if str(self.folder / "sweep") in line and "program.py" in line:
                found[int(path.parent.name)] = line
        return found

    def states(self) -> dict[str, tuple[str, str]]:
        """By their last overrides, as the command that has noted them last has left them."""
        entries = json.loads((self.folder / "sweep" / "manifest.json").read_text())["jobs"].values()
        return {entry["overrides"][-1]: (entry["status"], entry["reason"]) for entry in entries}

    def codes(self) -> int:
        """How many jobs have left a code."""
        return sum("code" in path.read_text() for path in (self.folder / "sweep" / "ray").glob("ray-*.json"))

    def has_saved(self, count: int) -> bool:
        return len([*(self.folder / "sweep").glob("*/checkpoints/last.ckpt")]) == count


def test_the_command_ends_and_the_next_one_finds_the_jobs(address: str, tmp_path: Path) -> None:
    sweep = Left(tmp_path, address, "seed=0,8")
    said = sweep.call("hydra.launcher.detach=true", FAULTS="1")
    assert "Wait for them: " in said
    wait_for(lambda: len([*(tmp_path / "journal").glob("*.finished")]) == 1 and sweep.has_saved(2), seconds=300, pause=0.2)
    wait_for(lambda: len(sweep.processes()) == 1, seconds=300, pause=0.2)
    assert "1 of 2 jobs finished, 1 running" in sweep.ask("status")
    (pid,) = sweep.processes()
    os.kill(int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)  # its worker
    wait_for(lambda: not sweep.processes(), seconds=300, pause=0.2)
    wait_for(lambda: "1 interrupted: Ray has lost its worker" in sweep.ask("status"), seconds=300, pause=0.5)
    sweep.call("hydra.launcher.detach=true")  # goes on with it
    wait_for(lambda: len([*(tmp_path / "journal").glob("*.finished")]) == 2, seconds=300, pause=0.2)
    allowed = ("hydra.launcher.address", "hydra.launcher.detach")
    sweep.ask("resume", "--program", str(PROGRAM), "--allow", *allowed)  # who finds jobs waits for them
    assert sweep.states() == {"seed=0": ("finished", None), WAITS: ("finished", None)}
    assert len([*(tmp_path / "journal").glob("*.began")]) == 3
    records = [json.loads(path.read_text())["metrics"] for path in (tmp_path / "sweep").glob("*/metrics.json")]
    assert records[0] == records[1]  # it went on from its checkpoint


def test_jobs_are_taken_back(address: str, tmp_path: Path) -> None:
    """Of three jobs two run, each on a node of one CPU, and one waits."""
    sweep = Left(tmp_path, address, WAITS, "model.optimizer.lr=1e-3,2e-3,3e-3")
    sweep.call("hydra.launcher.detach=true", FAULTS="1")
    wait_for(lambda: len(sweep.processes()) == 2 and sweep.has_saved(2), seconds=300, pause=0.2)
    assert "0 of 3 jobs finished, 2 running, 1 waiting" in sweep.ask("status")
    assert "3 job(s) cancelled" in sweep.ask("cancel")
    wait_for(lambda: sweep.codes() == 2, seconds=300, pause=0.2)
    said = sweep.ask("status")
    assert "0 of 3 jobs finished, 3 interrupted" in said, said
    assert "interrupted: asked to end" in said
    assert "interrupted: taken back, or lost by Ray, before it began" in said
    assert len([*(tmp_path / "journal").glob("*.began")]) == 2
