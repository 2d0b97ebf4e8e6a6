"""The jobs of a plan, and what they have cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher

from lockstep import console
from lockstep.sweeps.job_directory import read_record
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.states import FAILED, FINISHED
from lockstep.sweeps.sweep import Sweep


class Jobs:
    """spent, total, budget: samples that jobs were given, those of one training, and those that all jobs may have."""

    def __init__(self, launcher: Launcher, directory: Path, is_dry: bool) -> None:
        self.launcher, self.directory, self.is_dry = launcher, directory, is_dry
        self.spent = self.total = self.budget = 0.0
        self.launched = 0
        self.records: list[dict[str, Any]] = []

    @property
    def left(self) -> float:
        return self.budget - self.spent

    def launch(self, jobs: Sequence[list[str]]) -> list[dict[str, Any] | None]:
        """Returns the records of jobs, with their directories; None of one that has failed."""
        self.launched += len(jobs)
        if not self.is_dry:
            Sweep.expect(self.launched)
        returned = self.launcher.launch(jobs, initial_job_idx=self.launched)
        if self.is_dry:
            return [None] * len(jobs)
        states = {job["directory"]: job["status"] for job in Manifest(self.directory).jobs.values()}
        folders = [Path(str(one.working_dir)) for one in returned]
        if any(states[folder.name] not in (FINISHED, FAILED) for folder in folders):
            raise KeyboardInterrupt  # a job was interrupted, though not the sweep: the same command continues both
        records = [read_record(folder) if states[folder.name] == FINISHED else None for folder in folders]
        self.records += [record for record in records if record is not None]
        return [None if one is None else one | {"directory": folder} for one, folder in zip(records, folders, strict=True)]

    def say(self, what: str) -> None:
        left = f"{max(0.0, self.left) / self.total:.1%} is left"
        console.say(f"plan: {what}; {self.spent / self.total:.1%} of a training is spent, {left}")
