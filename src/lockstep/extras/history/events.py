"""The newest run that has not finished goes on by `resume=last`."""

from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.runs.events import RunEvents


class FindLast(RunEvents):
    """`resume=last` is the newest unfinished run below the working directory."""

    def locate(self, wanted: str, values: Mapping[str, str]) -> Path | None:
        if wanted != "last":
            return None
        if (rank := this_rank()) is not None:
            words = f"{rank.started_by}'s ranks look for themselves; accepted is the run's directory"
            raise config_error("resume", wanted, words)
        from lockstep.extras.history.directories import newest_unfinished

        return newest_unfinished(Path.cwd())
