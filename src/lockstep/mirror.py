"""Copy a run's directory to a file system of fsspec: s3://BUCKET/PATH, gs://BUCKET/PATH, file:///PATH, ..."""

import logging
import threading
import time
from pathlib import Path, PurePosixPath

from fsspec.core import url_to_fs

from lockstep.atomic_files import Stamp, read_stamp
from lockstep.errors import config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two looks at the checkpoints, which other processes write
WAIT = 300.0  # seconds that a run waits for its copy at its end
_NOT_COPIED = ("lock", "previous.ckpt")  # to open the lock here would give it up
# Stores in which an object appears when it is complete. Elsewhere a file is written under another name, and renamed.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


class Remote:
    """The copy at a URL. Its errors are those of the library that fsspec opens the URL with."""

    def __init__(self, url: str) -> None:
        self._fs, self._root = url_to_fs(url.rstrip("/"))
        self._is_object_store = url.partition("://")[0] in _OBJECT_STORES

    def holds_run(self) -> bool:
        return self._fs.exists(f"{self._root}/.hydra/config.yaml")

    def put(self, source: Path, name: str) -> None:
        """Copy a file to `name`, which has its earlier content until the copy is complete."""
        path = PurePosixPath(self._root, name)
        if self._is_object_store:
            self._fs.put_file(str(source), str(path))
            return
        partial = path.with_name(f".{path.name}.partial")
        self._fs.makedirs(str(path.parent), exist_ok=True)
        self._fs.put_file(str(source), str(partial))
        self._fs.mv(str(partial), str(path))

    def get(self, directory: Path) -> None:
        """Copy all files of the run into a directory here."""
        self._fs.get(f"{self._root}/", f"{directory}/", recursive=True)


def copy_url(prefix: str, directory: Path) -> str:
    """Return the URL of a directory's copy: the prefix, and the path below the working directory, else the absolute path."""
    below = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    return f"{prefix.rstrip('/')}/{below.as_posix().lstrip('/')}"


def check_new(prefix: str, directory: Path) -> None:
    """Raise ConfigError if a new run can't be copied, or would replace the copy of an earlier run."""
    url = copy_url(prefix, directory)
    try:
        is_taken = Remote(url).holds_run()
    except Exception as error:  # each library has its own
        words = f"can't be read ({error}); use the URL of a folder, s3://BUCKET/PREFIX for example"
        raise config_error("mirror", prefix, words) from error
    if is_taken:
        words = f"{url} has an earlier run; fetch and resume it, or choose another hydra.run.dir"
        raise config_error("mirror", prefix, words)


class Mirror:
    """Copy changed files after every checkpoint, and at the end of the run, in a thread.

    A file that can't be copied is a warning, and is tried again with the next checkpoint.
    """

    def __init__(self, prefix: str, directory: Path) -> None:
        self._url, self._directory = copy_url(prefix, directory), directory
        self._copied: dict[Path, Stamp] = {}
        self._is_over = threading.Event()
        before = self._checkpoints()  # now, because the thread may start after the first save
        self._thread = threading.Thread(target=self._work, args=(before,), name="mirror", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest, until WAIT seconds have passed or a stop signal arrives."""
        log.info(f"Copying the rest to {self._url}, for at most {WAIT:g} s; Ctrl-C leaves it")
        self._is_over.set()
        signals, deadline = len(STOP_SIGNALS.received), time.monotonic() + WAIT
        while self._thread.is_alive() and time.monotonic() < deadline and len(STOP_SIGNALS.received) == signals:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self._warn("the run does not wait any longer")

    def _work(self, before: list[Stamp | None]) -> None:
        while not self._is_over.wait(POLL):
            if (now := self._checkpoints()) != before:
                before = now
                self._copy()
        if self._copy():
            log.info(f"Copied to {self._url}")

    def _checkpoints(self) -> list[Stamp | None]:
        return [read_stamp(path) for path in sorted(self._directory.glob("checkpoints/*.ckpt"))]

    def _copy(self) -> bool:
        """Copy what has changed. Return False, after a warning, if that has failed."""
        try:
            remote = Remote(self._url)
            for path in self._changed():
                if (stamp := read_stamp(path)) is not None:  # the run has not removed it meanwhile
                    remote.put(path, path.relative_to(self._directory).as_posix())
                    self._copied[path] = stamp
        except Exception as error:  # each library has its own
            self._warn(str(error))
            return False
        return True

    def _changed(self) -> list[Path]:
        """Return the files that are not copied yet, the oldest first: parts of a checkpoint before the file that needs them."""
        paths = [path for path in self._directory.rglob("*") if path.is_file() and path.name not in _NOT_COPIED]
        stamps = {path: stamp for path in paths if not path.name.startswith(".") and (stamp := read_stamp(path))}
        return sorted((path for path in stamps if stamps[path] != self._copied.get(path)), key=lambda path: stamps[path][1])

    def _warn(self, why: str) -> None:
        log.warning(f"{self._url} lacks files ({why}); {self._directory} has them")


def fetch(url: str, directory: Path) -> None:
    """Fetch the run that was copied to `url` into a new directory.

    Raises:
        ConfigError: There is no such copy, or the directory exists.
    """
    remote = Remote(url)
    if not remote.holds_run():
        raise config_error("URL", url, "has no run; use the URL that the end of the run's log says")
    if directory.exists():
        raise config_error("RUN_DIR", directory, "exists; move it, or choose another one")
    partial = directory.with_name(f".{directory.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    remote.get(partial)
    partial.rename(directory)
