"""A run keeps the code that it is trained with."""

import logging
import sys
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from lockstep.atomic_files import replacing
from lockstep.extras.history.code import FILE, LEFT_OUT, MAX_KIB, GitError, describe_code, encode

log = logging.getLogger(__name__)


class KeepCode(Callback):
    """Write code.patch when training begins: the commit of the program's checkout, and what the working tree has beside it.

    A run that is continued with other code has another file for each start whose code differs from all before: code.2.patch.
    Where it can't be written, that is logged and the run goes on.

    Args:
        max_kib: size limit of a file that is not tracked; a larger one is named there and left out.
    """

    def __init__(self, max_kib: int = MAX_KIB) -> None:
        self.max_kib = max_kib

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            try:
                self.write(Path(trainer.default_root_dir))
            except (GitError, OSError) as error:
                log.warning(f"{FILE} is not written ({error}); the run goes on")

    def write(self, directory: Path) -> None:
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
