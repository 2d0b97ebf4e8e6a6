"""`sweep=ray_tune` on a real Ray: a search that is interrupted, and one whose worker and whose node die."""

import importlib.util
import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python, started
from ray_nodes import Nodes, running_nodes, worker_of
from waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]
PROGRAM = ROOT / "tests" / "support" / "fakes" / "program.py"
SEARCH = (PROGRAM, "-m", "sweep=ray_tune", "~hydra.callbacks.report", "hydra/launcher=ray", "hydra.sweep.dir=sweep")
SEARCH += ("trainer=cpu", "hydra.sweeper.n_jobs=2", "seed=choice(0,9)")  # of program.py, 9 waits after two steps, once
WELL_THEN_WAITING = ("hydra.sweeper.seed=20", "hydra.sweeper.n_trials=4")  # of four trials the last two wait
WAITING = ("hydra.sweeper.seed=22", "hydra.sweeper.n_trials=2")


class Search:
    """A folder in which a search runs, and what is known of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.sweep, self.journal = folder / "sweep", folder / "journal"
        self.journal.mkdir()
        self.given: dict[str, Any] = {"cwd": folder, "fresh": True, "FAULTS": "1", "JOURNAL": str(self.journal)}

    def jobs(self) -> dict[str, dict[str, Any]]:
        return json.loads((self.sweep / "manifest.json").read_text())["jobs"] if self.sweep.is_dir() else {}

    def attempts(self) -> dict[str, list[Any]]:
        return {key: job["attempts"] for key, job in self.jobs().items()}

    def states(self) -> list[str]:
        return [job["status"] for job in self.jobs().values()]

    def has_begun(self, count: int) -> bool:
        """Have so many attempts begun, and has each job saved?"""
        saved = len([*self.sweep.glob("*/checkpoints/last.ckpt")])
        return self.count("began") == count and saved == len(self.jobs())

    def count(self, what: str) -> int:
        return len([*self.journal.glob(f"*.{what}")])

    def check(self, jobs: int) -> None:
        """Each job has finished once, with what one that nothing happens to computes."""
        assert self.states() == ["finished"] * jobs
        assert self.count("finished") == jobs
        for job in self.jobs().values():
            rate = float(next(item for item in job["overrides"] if item.startswith("model.optimizer.lr=")).partition("=")[2])
            total = 0.0
            for step in range(5):
                total += rate * math.sqrt(step + 1)
            assert json.loads((self.sweep / job["directory"] / "metrics.json").read_text())["metrics"] == {"val/acc": total}


def test_ctrl_c_ends_a_search_and_the_same_command_goes_on_with_it(tmp_path: Path) -> None:
    search = Search(tmp_path)
    command = (*SEARCH, *WELL_THEN_WAITING, "hydra.launcher.num_cpus=2")
    with started(*command, **search.given) as process:  # fails if anything is left running, Ray's own processes too
        wait_for(lambda: search.has_begun(4) and len(search.jobs()) == 4, seconds=300, pause=0.1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 75, output + errors
    assert search.states() == ["finished"] * 2 + ["interrupted"] * 2
    before = search.attempts()
    assert [attempts[-1]["reason"] for attempts in before.values()][2:] == ["interrupted by SIGINT"] * 2
    done = python(*command, timeout=300, **search.given)
    assert done.returncode == 0, done.stdout + done.stderr
    search.check(4)
    after = search.attempts()
    assert [len(attempts) for attempts in after.values()] == [1, 1, 2, 2]
    assert [*after.values()][:2] == [*before.values()][:2]
    assert search.count("began") == 6


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def test_a_lost_node_and_a_lost_worker_are_made_good_and_the_search_ends(nodes: Nodes, tmp_path: Path) -> None:
    search = Search(tmp_path)
    command = (*SEARCH, *WAITING, f"hydra.launcher.address={nodes.address}")
    with started(*command, **search.given) as process:
        wait_for(lambda: search.has_begun(2) and len(search.jobs()) == 2, seconds=300, pause=0.1)
        nodes.ask("remove")
        wait_for(lambda: sorted(search.states()) == ["running", "waiting"], seconds=120, pause=0.1)
        nodes.ask("add")
        wait_for(lambda: sorted(search.states()) == ["finished", "running"], seconds=120, pause=0.1)
        (other,) = [job for job in search.jobs().values() if job["status"] == "running"]
        os.kill(worker_of(search.sweep / other["directory"]), signal.SIGKILL)
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, output + errors
    search.check(2)
    for first, _ in search.attempts().values():
        assert first["reason"].startswith("Ray has lost its worker: "), first
    assert search.count("began") == 4
    best = max(search.jobs().values(), key=lambda job: job["metric"])
    assert f"best: {search.sweep / best['directory']}" in output
