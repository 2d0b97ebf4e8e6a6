"""The files of a run, as one of its processes sees them."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json, remove_partial_files
from lockstep.launchers.environment import rank_log
from lockstep.runs.record import write_status


class RunFiles:
    """A run's directory, this process's log in it, and the record that rank zero writes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.log, self.metrics = directory, directory / rank_log(), directory / "metrics.json"
        self._checkpoints_before = self._checkpoints()

    def begin(self, cfg: DictConfig, *, is_first: bool) -> None:
        """Said in the files: the terminal gets what a person reads."""
        remove_partial_files(self.directory)
        self.metrics.unlink(missing_ok=True)  # of what is continued
        write_status(self.directory, "running", is_first=is_first)
        self.append_to_log(OmegaConf.to_yaml(cfg, resolve=True))

    def append_to_log(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def has_saved(self) -> bool:
        """Is there a checkpoint that was not there before this process?"""
        return bool(self._checkpoints() - self._checkpoints_before)

    def _checkpoints(self) -> set[tuple[str, int, int]]:
        """Told apart by what a rename gives them; what time it was is nobody's matter."""
        stats = [(path.name, path.stat()) for path in self.directory.glob("checkpoints/*.ckpt")]
        return {(name, stat.st_ino, stat.st_mtime_ns) for name, stat in stats}

    def result(self) -> dict[str, Any]:
        return read_json(self.metrics) or {}
