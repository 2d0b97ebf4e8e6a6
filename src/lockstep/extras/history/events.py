"""A run keeps the code that it is trained with; the newest one that has not finished goes on by `resume=last`."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from lockstep.atomic_files import replacing
from lockstep.config.targets import buildable
from lockstep.errors import config_error
from lockstep.extras.history.code import FILE, LEFT_OUT, MAX_KIB, describe_code, encode
from lockstep.launchers.environment import this_rank
from lockstep.runs.events import RunEvents

log = logging.getLogger(__name__)


@buildable
class KeepCode(RunEvents):
    """Writes code.patch when a run begins: the commit of the program's checkout, and what the working tree has beside it.

    A run that is continued with other code has another file for each start whose code differs from all before: code.2.patch.

    max_kib: of a file that is not tracked; a larger one is named there and left out.
    """

    def __init__(self, max_kib: int = MAX_KIB) -> None:
        self.max_kib = max_kib

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        code = describe_code(Path(sys.argv[0]).resolve().parent, self.max_kib)
        if code is None:
            return
        content = encode(code)
        before = sorted(directory.glob("code*.patch"))
        if any(path.is_file() and path.read_bytes() == content for path in before):  # a pipe would be waited for
            return
        path = directory / (f"code.{len(before) + 1}.patch" if before else FILE)
        with replacing(path, "wb") as file:
            file.write(content)
        if before:
            log.warning(f"the code is another than that with which this run began; {path.name} has it")
        header = code.partition("\ndiff --git ")[0]
        if left_out := header.count(f"\n{LEFT_OUT}"):
            log.warning(f"{FILE} lacks {left_out} untracked file(s) of over {self.max_kib} KiB, which it names")


@buildable
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
