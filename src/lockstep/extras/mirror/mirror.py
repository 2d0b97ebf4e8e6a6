"""The copy of a run's directory, in any file system of fsspec: s3://BUCKET/PATH, gs://BUCKET/PATH, file:///PATH, ..."""

import json
import logging
import shutil
import threading
import time
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.core import url_to_fs

from lockstep import console
from lockstep.atomic_files import Stamp, read_json, read_stamp, write_json
from lockstep.errors import config_error
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.directory import absolute

log = logging.getLogger(__name__)

FILE = "mirror.json"  # where the copy is, where the run was, and a mark for each start of the run
POLL = 1.0  # seconds between two looks at the checkpoints, which other processes write
WAIT = 300.0  # seconds that a run waits for its copy at its end
_NOT_COPIED = ("lock", "previous.ckpt")  # to open the lock here would give it up
# Stores that show an object when all of it is there. Elsewhere a file is written under another name, and renamed.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")

Note = dict[str, Any]


class Remote:
    """The copy at a URL. Its errors are those of the library that fsspec opens the URL with."""

    def __init__(self, url: str) -> None:
        self._fs, self._root = url_to_fs(url)
        self._is_object_store = url.partition("://")[0] in _OBJECT_STORES

    def read_note(self) -> Note:
        """Return mirror.json of the copy; empty without one."""
        try:
            return json.loads(self._fs.cat_file(f"{self._root}/{FILE}"))
        except FileNotFoundError:
            return {}

    def put(self, source: Path, name: str) -> None:
        """Copy a file there; `name` holds its earlier content until all of the new one is there."""
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


def read_note(directory: Path) -> Note:
    """Return mirror.json of a directory here; empty without one. A sweep moves that of a failed job to its attempts."""
    attempts = sorted(directory.glob(f"attempts/*/{FILE}"), key=lambda path: int(path.parent.name))
    return read_json(directory / FILE) or (read_json(attempts[-1]) if attempts else None) or {}


def is_ahead(there: Note, here: Note) -> bool:
    """True if a copy has starts that a directory here has not: the run was continued elsewhere, or is another one."""
    marks = there.get("starts", [])
    return marks != here.get("starts", [])[: len(marks)]


def claim(prefix: str, directory: Path, is_new: bool) -> None:
    """Mark a start of the run in mirror.json, here and in the copy.

    A store that does not answer keeps only a new run from starting.

    Raises:
        ConfigError: The copy can't be written to, or is ahead of this directory.
    """
    cwd, before = Path.cwd(), read_note(directory)
    place = (directory.relative_to(cwd) if directory.is_relative_to(cwd) else directory).as_posix()
    url = f"{prefix.rstrip('/')}/{place.lstrip('/')}"
    there: Note = {}
    write_json(directory / FILE, {"url": url, "directory": place, "starts": [*before.get("starts", []), uuid.uuid4().hex[:8]]})
    try:
        remote = Remote(url)
        there = remote.read_note()
        if not is_ahead(there, before):
            remote.put(directory / FILE, FILE)
    except Exception as error:  # each library has its own
        if is_new:
            words = f"can't be written to ({error}); give the URL of a folder, s3://BUCKET/PREFIX for example"
            raise config_error("mirror", prefix, words) from error
        log.warning(f"{url} can't be written to ({error}); it is tried again with the next checkpoint")
    if is_ahead(there, before):
        words = f"{url} has a run, or a continuation of this one, that is not here; fetch and resume it: lockstep fetch {url}"
        raise config_error("mirror", prefix, f"{words}, or choose another hydra.run.dir")


class Mirror:
    """Copy what has changed after every checkpoint, and at the end of the run, in a thread.

    The files here are the run. A file that can't be copied is named, tried again with the next checkpoint, and never an error.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._note = directory, read_note(directory)
        self._copied: dict[Path, Stamp] = {}
        self._left: list[Path] = []
        self._checkpoints_before = self._checkpoints()  # before the thread starts, which may be after the first save
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest, until WAIT seconds have passed or a stop signal arrives."""
        log.info(f"Copying the rest to {self._note['url']}, for at most {WAIT:g} s; Ctrl-C leaves it")
        self._is_over.set()
        signals, deadline = len(STOP_SIGNALS.received), time.monotonic() + WAIT
        while self._thread.is_alive() and time.monotonic() < deadline and len(STOP_SIGNALS.received) == signals:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self._warn("the run does not wait any longer")
        elif not self._left:
            log.info(f"Copied to {self._note['url']}")

    def _work(self) -> None:
        while not self._is_over.wait(POLL):
            if (now := self._checkpoints()) != self._checkpoints_before:
                self._checkpoints_before = now
                self._copy()
        self._copy()

    def _checkpoints(self) -> list[Stamp | None]:
        return [read_stamp(path) for path in sorted(self._directory.glob("checkpoints/*.ckpt"))]

    def _copy(self) -> None:
        try:
            self._left = self._changed()
            remote = Remote(self._note["url"])
            if is_ahead(remote.read_note(), self._note):
                self._warn("the run was continued elsewhere")
                return
            while self._left:
                path = self._left[0]
                if (stamp := read_stamp(path)) is not None:  # the run has not removed it meanwhile
                    remote.put(path, path.relative_to(self._directory).as_posix())
                    self._copied[path] = stamp
                del self._left[0]
        except Exception as error:
            self._warn(str(error))

    def _changed(self) -> list[Path]:
        """Return the files that are not copied yet, the oldest first: parts of a checkpoint before the file that needs them."""
        paths = [path for path in self._directory.rglob("*") if path.is_file() and path.name not in _NOT_COPIED]
        stamps = {path: read_stamp(path) or (0, 0, 0) for path in paths if not path.name.startswith(".")}
        return sorted((path for path in stamps if stamps[path] != self._copied.get(path)), key=lambda path: stamps[path][1])

    def _warn(self, why: str) -> None:
        names = console.join_first([path.relative_to(self._directory) for path in self._left])
        log.warning(f"{self._note['url']} lacks {names} ({why}); {self._directory} has it")


def bring(url: str) -> Path:
    """Fetch the run that was copied to `url`, to the place where it was below the working directory, and return that.

    Raises:
        ConfigError: There is no such copy, or there is a directory that is not as new.
    """
    remote = Remote(url.rstrip("/"))
    there = remote.read_note()
    if not there:
        raise config_error("URL", url, "has no mirror.json; give the URL that a run's mirror.json says")
    directory = absolute(there["directory"])
    if directory.exists():
        if is_ahead(there, read_note(directory)):
            raise config_error("URL", url, f"{directory} is an older state of this run, or another run; move it first")
        return directory
    console.say(f"Fetching {url} to {directory}.")
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    remote.get(partial)
    return partial.rename(directory)
