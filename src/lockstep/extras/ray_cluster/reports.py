"""The validations of a search's jobs, in the order in which they were reported, and what Ray Tune's scheduler said to each.

A scheduler is made anew for each report, and hears all before it again: its own files would be pickles, which a stranger's
directory must not bring.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np

from lockstep.atomic_files import read_json, sync
from lockstep.config.construct import construct
from lockstep.errors import NamedFailure, config_error

TIME = "training_iteration"  # what Ray Tune calls the number of a trial's reports
TUNE = "tune.json"  # in the sweep's directory: the scheduler that its jobs ask
REPORTS = "tune.jsonl"  # and beside it: {job, validations, value, stop}, a line each
_SHAPE = {"scheduler": dict, "metric": str, "mode": ("max", "min"), "seed": int}
_REPORT = {"job", "validations", "value", "stop"}


def make(node: dict[str, Any]) -> Any:
    """Return the scheduler of a node. Raise ConfigError for arguments that it does not take or a sweep sets itself."""
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    try:
        return construct("hydra.sweeper.scheduler", node, {"time_attr": TIME, "metric": None, "mode": None})
    except AssertionError as error:  # by which Ray Tune checks them
        raise config_error("hydra.sweeper.scheduler", node["_target_"], f"{error}; use what it takes") from error


@dataclass(frozen=True)
class Job:
    """Stand-in for a trial, with what schedulers ask that only continue or stop it."""

    trial_id: str


def report(run_dir: Path, validations: int, value: float) -> bool:
    """Returns whether the job ends now. One that is reported again after a restart gets the answer that it got."""
    with (run_dir.parent / REPORTS).open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # until it is closed
        known = _read(file)
        before = [one for one in known if (one["job"], one["validations"]) == (run_dir.name, validations)]
        if before:
            return before[0]["stop"]
        schedule = _Schedule(run_dir.parent)
        for one in known:
            schedule.answer(one["job"], one["validations"], one["value"])
        is_over = schedule.answer(run_dir.name, validations, value)
        line = {"job": run_dir.name, "validations": validations, "value": value, "stop": is_over}
        file.write(json.dumps(line).encode() + b"\n")
        sync(file)
        return is_over


class _Schedule:
    def __init__(self, directory: Path) -> None:
        if (known := read_json(directory / TUNE, _SHAPE)) is None:
            raise NamedFailure(f"{directory / TUNE} is damaged; the sweep's own command writes it anew")
        self.seed, self.metric = known["seed"], known["metric"]
        self.scheduler = make(known["scheduler"])
        self.scheduler.set_search_properties(self.metric, known["mode"])
        self.controller = SimpleNamespace(get_live_trials=list, get_trials=list)
        self.jobs: dict[str, Job] = {}

    def answer(self, name: str, validations: int, value: float) -> bool:
        with _drawing_from(self.seed, len(self.jobs)):
            if name not in self.jobs:
                self.jobs[name] = Job(name)
                self.scheduler.on_trial_add(self.controller, self.jobs[name])
            result = {TIME: validations, self.metric: value}
            return self.scheduler.on_trial_result(self.controller, self.jobs[name], result) == "STOP"


@contextlib.contextmanager
def _drawing_from(*seed: int) -> Iterator[None]:
    """Seed numpy's global generator, from which ASHA draws a bracket, and restore it afterwards."""
    kept = np.random.get_state()
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))
    try:
        yield
    finally:
        np.random.set_state(kept)


def _read(file: IO[bytes]) -> list[dict[str, Any]]:
    """Takes out a last line that a kill has cut off."""
    file.seek(0)
    content = file.read()
    os.truncate(file.fileno(), content.rfind(b"\n") + 1)
    lines = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    return [line for line in lines if isinstance(line, dict) and line.keys() == _REPORT]
