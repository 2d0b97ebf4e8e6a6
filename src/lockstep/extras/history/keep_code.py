"""A run keeps the code that it is trained with."""

import logging
import subprocess
import sys
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from lockstep.atomic_files import replacing
from lockstep.extras.history.code import FILE, describe_code

log = logging.getLogger(__name__)


class KeepCode(Callback):
    """Write code.patch when training begins. A start with other code than all before writes another file, code.2.patch.

    Args:
        max_kib: size limit of a file that is not tracked; a larger one is named there and left out.
    """

    def __init__(self, max_kib: int = 1024) -> None:
        self.max_kib = max_kib

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            try:
                self.write(Path(trainer.default_root_dir))
            except (subprocess.SubprocessError, OSError) as error:
                log.warning(f"{FILE} is not written ({error}); the run goes on")

    def write(self, directory: Path) -> None:
        code = describe_code(Path(sys.argv[0]).resolve().parent, self.max_kib)
        before = sorted(directory.glob("code*.patch"))
        if code is None or any(path.read_bytes() == code for path in before):
            return
        path = directory / (f"code.{len(before) + 1}.patch" if before else FILE)
        with replacing(path, "wb") as file:
            file.write(code)
        if before:
            log.warning(f"the code is another than that with which this run began; {path.name} has it")
        if left_out := code.partition(b"\ndiff --git ")[0].count(b"\nleft out "):
            log.warning(f"{path.name} lacks {left_out} untracked file(s) of over {self.max_kib} KiB, which it names")
