"""`mirror=s3://bucket/prefix`: a copy of a run's directory elsewhere, made in the background while it trains."""

import json
import logging
import math
import os
import platform
import shutil
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.atomic_files import Stamp, read_json, read_stamp, write_json
from lockstep.errors import config_error
from lockstep.extras.mirror.remote import Remote, reason, within
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.saved import FILE as IDENTITY
from lockstep.runs.saved import read_run_id

log = logging.getLogger(__name__)

FILE = "mirror.json"
PATIENCE = 60.0  # seconds for a first answer from there
POLL = 1.0  # seconds between two looks at the checkpoints, which other processes write
SILENCE = 2.0  # seconds at the end of a run before it is said what it waits for
# What makes a run that can be continued comes first, so that a copy that was broken off is one.
_FIRST = (IDENTITY, ".hydra/", "checkpoints/parts/", "checkpoints/last.ckpt", "checkpoints/")
_NOT_COPIED = ("lock", "previous.ckpt", FILE)  # to open the lock here would give it up; the note goes before all others
_PUT_ASIDE = (".damaged", ".foreign")
_HELD = ".copied"

Note = dict[str, Any]


def copy_url(prefix: str, directory: Path) -> str:
    """Returns where the copy of a run directory is: under the prefix as the directory is under the working directory; or where it
    has been before, were the directory moved."""
    prefix, known = prefix.rstrip("/"), read_note(directory).get("url", "")
    if known.startswith(f"{prefix}/"):
        return known
    here = Path.cwd()
    return f"{prefix}/{directory.relative_to(here if directory.is_relative_to(here) else directory.anchor).as_posix()}"


def read_note(directory: Path) -> Note:
    """mirror.json: where the copy is, whose it is, and how it stands; empty where there is none.

    A sweep's job that is tried again begins in its directory without it, and goes on with the note of its last attempt.
    """
    attempts = sorted(directory.glob(f"attempts/*/{FILE}"), key=lambda path: int(path.parent.name))
    return read_json(directory / FILE) or (read_json(attempts[-1]) if attempts else None) or {}


def note_at(remote: Remote) -> Note:
    """The same of the copy."""
    content = remote.read(FILE)
    return {} if content is None else json.loads(content)


def is_ahead(remote_note: Note, local_note: Note) -> bool:
    """Has the run been started from its copy since this directory was copied there last? Every start adds its mark."""
    marks = remote_note.get("starts", [])
    return marks != local_note.get("starts", [])[: len(marks)]


def check_mirror(prefix: str, directory: Path, run_id: str, is_new: bool) -> None:
    """May a run that is about to begin be copied there? One that goes on is not kept from it by a store that does not answer.

    Raises ConfigError where there is the copy of another run, or one that has been continued elsewhere.
    """
    url = copy_url(prefix, directory)
    remote = Remote("mirror", url, prefix)
    if remote.is_in(directory):
        raise config_error("mirror", prefix, "is where the run is itself; accepted is another place")
    try:
        if is_new:
            within(PATIENCE, remote.check_writable)
        remote_note = within(PATIENCE, lambda: note_at(remote))
    except Exception as error:
        if is_new:
            words = f"can't be written to ({reason(error)}); accepted is the URL of a folder, s3://BUCKET/PREFIX say, or null"
            raise config_error("mirror", prefix, words) from error
        log.warning(f"{url}: no answer ({reason(error)}); going on without knowing what is there")
        return
    local_note = read_note(directory)
    known = (run_id, local_note.get("id"))  # a sweep's job that is tried again begins anew in its directory
    if remote_note and remote_note["id"] not in known:
        words = f"{url} is the copy of an earlier run; accepted is resume={url} to go on with that, or another hydra.run.dir"
        raise config_error("mirror", prefix, words)
    if is_ahead(remote_note, local_note):
        words = f"the run has gone on since, on {remote_note['host']}; accepted is resume={url}, which fetches it"
        raise config_error("resume", directory, words)


class Mirror:
    """A thread of the process that has a run directory. With every new checkpoint, and at the end, it copies what has changed.
    Local files are the run: what can't be copied is said in one line, tried again with the next checkpoint, and never an error.
    """

    def __init__(self, url: str, directory: Path, wait: float) -> None:
        self.url, self.directory, self._wait = url, directory, wait
        self._remote = Remote("mirror", url)
        before = read_note(directory)
        marks = [*before.get("starts", []), uuid.uuid4().hex[:8]]
        self._note: Note = {"url": url, "id": read_run_id(directory), "starts": marks, "host": platform.node()}
        self._copied: dict[str, Stamp | None] = {}
        self._left: list[str] = []
        self._reason: str | None = None
        self._is_over = threading.Event()
        self._is_due = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def start(self) -> None:
        self._before = self._checkpoints()
        self._thread.start()

    def copy_soon(self) -> None:
        """Returns at once."""
        self._is_due.set()

    def finish(self) -> None:
        """Copies the rest, for as long as it may take, or until a signal asks to leave; says and notes how it stands."""
        if self._is_over.is_set() or self._thread.ident is None:
            return
        self._is_over.set()
        self.copy_soon()
        asked, deadline = len(STOP_SIGNALS.received), time.monotonic() + self._wait
        speaks_at = time.monotonic() + SILENCE
        while self._thread.is_alive() and time.monotonic() < deadline and len(STOP_SIGNALS.received) == asked:
            if time.monotonic() > speaks_at:
                console.say(f"Copying to {self.url}, for at most {self._wait:g} s; Ctrl-C leaves the rest.")
                speaks_at = math.inf
            self._thread.join(0.1)
        if self._thread.is_alive():
            self._reason = f"no end within {self._wait:g} s" if time.monotonic() >= deadline else "asked to leave"
            self._write_note()
        if self._reason is None:
            log.info(f"Copied to {self.url}")
        else:
            log.warning(f"{self.url} lacks {console.join_first(self._left)} ({self._reason}); {self.directory} has all of it")

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_due, now = self._is_due.wait(POLL), self._checkpoints()
            if is_due or now != self._before:
                self._is_due.clear()
                self._before, is_last = now, self._is_over.is_set()
                self._copy()

    def _checkpoints(self) -> dict[str, Stamp | None]:
        return {path.name: read_stamp(path) for path in self.directory.glob("checkpoints/*.ckpt")}

    def _names(self) -> list[str]:
        """The files of the run in the order in which they are copied."""
        paths = [path for path in self.directory.rglob("*") if not path.name.startswith(".") and path.is_file()]
        paths = [path for path in paths if path.name not in _NOT_COPIED and path.suffix not in _PUT_ASIDE]
        names = [path.relative_to(self.directory).as_posix() for path in paths]
        return sorted(names, key=lambda name: (_turn(name), name))

    def _copy(self) -> None:
        """What has changed since it was copied."""
        self._reason = None
        try:
            self._left = [name for name in self._names() if read_stamp(self.directory / name) != self._copied.get(name)]
            self._claim()
            while self._left:
                self._copy_file(self._left[0])
                del self._left[0]
        except Exception as error:  # each library raises its own
            self._reason = reason(error)
            rest = console.join_first(self._left)
            if not self._is_over.is_set():
                log.warning(f"{self.url}: not copied ({self._reason}): {rest}; tried again with the next checkpoint")
        self._write_note()

    def _claim(self) -> None:
        """Leaves this start's mark before anything else: what was copied before it is older."""
        remote_note = note_at(self._remote)
        if is_ahead(remote_note, self._note):
            raise RuntimeError(f"the run has gone on since, on {remote_note['host']}")
        if remote_note.get("starts") != self._note["starts"]:
            write_json(self.directory / FILE, self._note)
            self._remote.put(self.directory / FILE, FILE)

    def _copy_file(self, name: str) -> None:
        path, held = self.directory / name, self.directory / _HELD
        stamp = read_stamp(path)
        try:
            if _hold(path, held):
                self._remote.put(held, name)
                self._copied[name] = stamp
        finally:
            held.unlink(missing_ok=True)

    def _write_note(self) -> None:
        stands = {"lacks": self._left, "reason": self._reason, "updated": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        with suppress(OSError):  # the disk may be full
            write_json(self.directory / FILE, self._note | stands)


def _turn(name: str) -> int:
    """How early a file is copied; that the run has ended is told last."""
    if name == "status.json":
        return len(_FIRST) + 1
    return next((i for i, start in enumerate(_FIRST) if name.startswith(start)), len(_FIRST))


def _hold(path: Path, held: Path) -> bool:
    """Keeps what a file is now under another name, however it is replaced or appended to meanwhile. Is it still there?"""
    held.unlink(missing_ok=True)
    if path.suffix == ".ckpt":  # may be large, and is never written to again
        with suppress(OSError):
            os.link(path, held)
            return True
    with suppress(FileNotFoundError):
        shutil.copyfile(path, held)
        return True
    return False
