"""A folder that fsspec reaches: s3://bucket/path, gs://bucket/path, file:///path, ..."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from lockstep.errors import config_error

# Stores in which an object is there when its upload is complete, and not before. Elsewhere a file is written under another
# name, and renamed.
_KEEPS_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
_EXTRAS = {"s3": 'pip install "lockstep[s3]"', "s3a": 'pip install "lockstep[s3]"'}
_PARTIAL = ".partial"


class Remote:
    """One run's folder there. Whatever goes wrong in it is raised as the library raises it: see `reason`."""

    def __init__(self, key: str, url: str, given: str | None = None) -> None:
        """Raises ConfigError, naming the config key and what it was given, where fsspec does not know it or lacks a package."""
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        self._protocol = url.partition(":")[0]
        try:
            self._fs, self._root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            how = _EXTRAS.get(self._protocol, "or choose another")
            raise config_error(key, given or url, f"fsspec can't open it ({reason(error)}); {how}") from error

    def is_in(self, folder: Path) -> bool:
        """Is it a folder of this machine, that one or one in it?"""
        is_here = self._protocol in ("file", "local")
        return is_here and Path(self._root).resolve().is_relative_to(folder.resolve())

    def put(self, source: Path, name: str) -> None:
        """The name is then the whole content's, or is as it was."""
        path = f"{self._root}/{name}"
        if self._protocol in _KEEPS_OBJECTS:
            self._fs.put_file(str(source), path)
            return
        folder, _, last = path.rpartition("/")
        partial = f"{folder}/.{last}{_PARTIAL}"
        self._fs.makedirs(folder, exist_ok=True)
        self._fs.put_file(str(source), partial)
        self._fs.mv(partial, path)

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""
        try:
            return self._fs.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Returns the names of all files there, but for what uploads that were killed have left."""
        self._fs.invalidate_cache()
        names = [path.removeprefix(self._root).lstrip("/") for path in self._fs.find(self._root)]
        return [name for name in names if not (name.rpartition("/")[2].startswith(".") and name.endswith(_PARTIAL))]

    def get(self, name: str, folder: Path) -> None:
        """Into a folder here, under the same name. Raises ValueError for a name that would lead out of it."""
        if ".." in PurePosixPath(name).parts:
            raise ValueError(f"{name} leads out of the run's directory")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(f"{self._root}/{name}", str(folder / name))

    def check_writable(self) -> None:
        """Writes a file and removes it again, which not everybody may."""
        path = f"{self._root}/.probe{_PARTIAL}"
        if self._protocol not in _KEEPS_OBJECTS:
            self._fs.makedirs(self._root, exist_ok=True)
        self._fs.pipe_file(path, b"Can this run write here?")
        with suppress(Exception):
            self._fs.rm_file(path)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What it returns or raises; TimeoutError where it takes longer, and goes on in a thread that keeps nobody waiting."""
    answer = Future[Any]()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="remote", daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


def reason(error: BaseException) -> str:
    """In one line."""
    return " ".join(str(error).split()) or type(error).__name__
