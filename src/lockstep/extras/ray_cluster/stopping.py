"""Early end of a job of a search by Ray Tune, where others were better by the same epoch."""

from pathlib import Path

from lockstep.extras.ray_cluster.reports import TUNE, report
from lockstep.extras.search.pruning import EndEarly


class Stopping(EndEarly):
    """Reports to the sweep's directory, and asks Ray Tune's scheduler. A run of another sweep, or of none, trains as without this
    callback."""

    _run_dir: Path | None = None

    def find_search(self, run_dir: Path) -> None:
        self._run_dir = run_dir if (run_dir.parent / TUNE).is_file() else None

    def should_prune(self, value: float) -> bool:
        return self._run_dir is not None and report(self._run_dir, self.validations, value)
