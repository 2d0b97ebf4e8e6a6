"""The processes of the trainings that are compared. Each side is a run that the core's launcher supervises; it stays for all
comparisons of a verdict, since starting it takes seconds. Imports no torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from omegaconf import OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.plan import Plan, cores
from lockstep.errors import ConfigError, ExitCode
from lockstep.extras.parity import ranks
from lockstep.extras.parity.ranks import FRESH, write_plain
from lockstep.extras.parity.sides import Findings, Role, Sides, Training, for_steps
from lockstep.launchers.environment import SWEEP_PIPE
from lockstep.launchers.processes import start_process
from lockstep.launchers.supervisor import kill_group, pipe

Roles = dict[str, tuple[Role, dict[str, Any]]]  # what each side does, and the interventions in its training alone
_POLL = 0.005  # seconds between two looks at the findings
_ENDING = 10.0  # seconds that the processes of a side get to end


class SideFailed(RuntimeError):
    """A side has raised instead of training: which one, and the traceback of the process that failed first."""

    def __init__(self, side: str, traceback: str) -> None:
        super().__init__(f"{side}: {traceback.strip().splitlines()[-1]}")
        self.side, self.traceback = side, traceback


class Processes(contextlib.AbstractContextManager["Processes"]):
    """A context: the processes of each side, alive from their first training on.

    `total`: how many train at the same time, and share the cores. `patience`: seconds in which a process makes no step, until it
    counts as hung; three times as many before its first batch. `fresh`: each imports torch anew, and is not forked: forked
    processes all iterate over a set of strings in the same order.
    """

    def __init__(self, total: int, folder: Path, patience: float = 120, fresh: bool = False) -> None:
        self.folder, self.patience, self._fresh = folder, patience, fresh
        threads = max(1, len(cores()) // total)
        deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # for kernels that may be asked for later; it is read once
        self._environment = deterministic | os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._started: dict[tuple[str, int], _Side] = {}

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """The next trainings start them anew, without what earlier ones have left in global variables."""
        for side in self._started.values():
            side.process.send_signal(signal.SIGTERM)
        for side in self._started.values():
            side.end()
        self._started.clear()

    def train(self, trainings: dict[str, Training]) -> dict[str, Findings]:
        """Does one training on each of these sides, all at the same time.

        Raises SideFailed for what a process raises, or if it hangs, and ConfigError if it raises one; the sides then start anew.
        """
        try:
            sides = {name: self._side(name, training.plan["world_size"]) for name, training in trainings.items()}
            for name, side in sides.items():
                side.begin(trainings[name], self.patience)
            while not all(side.findings.exists() for side in sides.values()):
                for side in sides.values():
                    side.check()
                time.sleep(_POLL)
        except BaseException:
            self.end()
            raise
        return {name: Findings.from_plain(json.loads(side.findings.read_text())) for name, side in sides.items()}

    def _side(self, name: str, size: int) -> "_Side":
        if (name, size) not in self._started:
            self._started[name, size] = _Side(name, size, self.folder, self._environment, self._fresh)
        return self._started[name, size]


class _Side:
    """The processes of one side: ranks.py is what they run."""

    def __init__(self, name: str, size: int, folder: Path, environment: dict[str, str], fresh: bool) -> None:
        self.name, self._number = name, -1
        self._folder = Path(mkdtemp(prefix=f"{name}-", dir=folder))
        self._lifeline = contextlib.ExitStack()
        reader, _ = self._lifeline.enter_context(pipe())
        command = [sys.executable, str(Path(ranks.__file__)), str(self._folder), str(size), *([FRESH] if fresh else [])]
        with (self._folder / "output.log").open("wb") as log:
            self.process = start_process(command, environment, (SWEEP_PIPE, reader), log, log, fresh=fresh, starts_ranks=True)

    def begin(self, training: Training, patience: float) -> None:
        self._number += 1
        write_plain(self._folder / f"{self._number}.json", asdict(training) | {"patience": patience, "path": sys.path})

    @property
    def findings(self) -> Path:
        """The file in which those of the current training will be."""
        return self._folder / f"{self._number}.findings.json"

    def check(self) -> None:
        """Raises what the side has ended with, if it has."""
        if self.process.poll() is None:
            return
        outcome: dict[str, Any] = read_json(self._folder / "outcome.json") or {}
        if outcome.get("code") == ExitCode.REFUSED:
            raise ConfigError(outcome["reason"])
        stacks = [file.read_text() for file in sorted(self._folder.glob("stacks*.log"))]  # of processes that were hung
        reason = outcome.get("reason") or "its processes were killed"
        raise SideFailed(self.name, outcome.get("traceback") or "\n".join([*stacks, reason]))

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_ENDING)
        kill_group(self.process.pid)
        self._lifeline.close()


def train_once(sides: Sides, processes: Processes, roles: Roles) -> dict[str, Findings]:
    with TemporaryDirectory(prefix="comparison-", dir=processes.folder) as folder:
        return train_sides(sides, processes, Path(folder), roles)


def train_sides(sides: Sides, processes: Processes, folder: Path, roles: Roles) -> dict[str, Findings]:
    """Trains the sides in their roles, at the same time."""
    trainings, records = {}, folder / "records"  # apart from what a model's own callbacks write
    records.mkdir(exist_ok=True)
    for name, (role, interventions) in roles.items():
        if role == "follow":
            (records / name).mkdir()
        cfg = for_steps(sides.other if name == "other" else sides.reference, sides.steps, folder)
        cfg.interventions.update(interventions)
        content: Any = OmegaConf.to_container(cfg)
        if json.loads(json.dumps(content)) != content:  # JSON has no numbers for keys
            content = OmegaConf.to_yaml(cfg)
        trainings[name] = Training(content, asdict(Plan.from_config(cfg)), role, str(records), name)
    return processes.train(trainings)
