"""What the processes of a run are called."""

import os
from pathlib import Path

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.launchers.environment import SWEPT_KEYS, this_rank
from lockstep.runs.events import RunEvents


@buildable
class ProcessTitles(RunEvents):
    """Names the ranks of a run, and the jobs of a sweep."""

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        self.building(cfg)

    def building(self, cfg: DictConfig) -> None:
        if (name := process_name(Path(cfg.run_dir))) is not None:
            from lockstep.extras.import_server.process_title import set_title  # most processes are a person's

            set_title(name)


def process_name(directory: Path) -> str | None:
    """Returns what this process of the run in a directory is called; one that a person has started keeps its command line."""
    if (rank := this_rank()) is not None:
        return f"lockstep rank {rank.global_rank}/{rank.world_size} {directory.name}"
    return f"lockstep job {directory.name}" if SWEPT_KEYS in os.environ else None
