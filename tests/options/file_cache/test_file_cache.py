"""A file that several processes want, of which one writes it."""

import os
import time
from pathlib import Path

from lockstep.datamodules.file_cache import write_once


def test_one_process_writes_and_the_other_waits(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"

    def write() -> None:
        with (tmp_path / "writers").open("a") as file:
            file.write("x")
        time.sleep(0.2)
        path.write_text("whole")

    pid = os.fork()
    if not pid:
        try:
            write_once(path, write)
        finally:
            os._exit(0)
    write_once(path, write)
    assert path.read_text() == "whole"
    os.waitpid(pid, 0)
    assert (tmp_path / "writers").read_text() == "x"
