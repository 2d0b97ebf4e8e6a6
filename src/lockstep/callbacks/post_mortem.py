"""A debugger that opens where training has failed."""

import pdb
import traceback
from pathlib import Path
from typing import Any

from lightning import Callback

from lockstep.launchers.heartbeat import DEBUGGED


class PostMortem(Callback):
    """Open pdb on rank zero if it raises an exception. The other ranks and their parent wait until pdb exits."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if trainer.is_global_zero and isinstance(exception, Exception):
            mark = Path(trainer.default_root_dir) / DEBUGGED
            mark.touch()  # first, because the parent ends this rank soon after another one has failed
            traceback.print_exception(exception)
            pdb.post_mortem(exception.__traceback__)
            mark.unlink(missing_ok=True)
