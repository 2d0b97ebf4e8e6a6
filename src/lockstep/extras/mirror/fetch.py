"""The copy of a run, brought back to this machine: whole, or not at all."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.errors import config_error
from lockstep.extras.mirror.mirror import PATIENCE, Note, is_ahead, note_at, read_note
from lockstep.extras.mirror.remote import Remote, reason, within
from lockstep.launchers.environment import is_rank_zero
from lockstep.runs.directory import absolute, aside
from lockstep.runs.locks import check_free
from lockstep.runs.saved import FILE, read_run_id

_KEY, _LOGS = "resume", "logs"
_FETCHED_WITHIN = 3600.0  # seconds that ranks wait for rank zero


def directory_for(url: str) -> Path:
    """Returns where it is put if nobody says otherwise: where it was, logs/NAME/RUN or logs/RUN, by the end of the URL."""
    names = url.rstrip("/").partition("://")[2].split("/")
    below = names[len(names) - names[::-1].index(_LOGS) :] if _LOGS in names[:-1] else names[-2:]
    return absolute(Path(_LOGS, *below))


def bring(url: str, directory: Path) -> None:
    """`directory` is then the run of which there is a copy at `url`, in its newest state: left alone if it is that already, else
    set aside and fetched; by rank zero, for which the others wait.

    Raises ConfigError where there is no such copy, or the directory is another run's or in use.
    """
    remote = Remote(_KEY, url)
    remote_note = _answer(url, lambda: note_at(remote))
    if not remote_note:
        raise config_error(_KEY, url, "is no copy of a run; accepted is the URL that its mirror.json says")
    if not _is_newer(remote_note, directory):
        return
    if not is_rank_zero():
        _wait(remote_note, directory)
        return
    names = _answer(url, remote.names)
    if FILE not in names:
        raise config_error(_KEY, url, f"has no {FILE} yet; accepted is the copy of a run that has saved a checkpoint")
    if directory.exists() and any(directory.iterdir()):
        if read_run_id(directory) != remote_note["id"]:
            words = f"{directory} is there already and not that run's; accepted is another place for it, hydra.run.dir=DIRECTORY"
            raise config_error(_KEY, url, words)
        check_free(directory, _KEY)
        earlier = aside(directory)
        directory.rename(earlier)
        console.say(f"{directory} is older than its copy: moved to {earlier.name}.")
    console.say(f"Fetching {url} to {directory}.")
    partial = directory.with_name(f".{directory.name}.partial")  # which then takes its name
    shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
    try:
        partial.mkdir(parents=True)
        for name in names:
            remote.get(name, partial)
        partial.rename(directory)
    except Exception as error:  # each library raises its own
        raise config_error(_KEY, url, f"can't be fetched ({reason(error)})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _answer(url: str, question: Callable[[], Any]) -> Any:
    try:
        return within(PATIENCE, question)
    except Exception as error:
        raise config_error(_KEY, url, f"can't be read ({reason(error)})") from error


def _is_newer(remote_note: Note, directory: Path) -> bool:
    return not (directory / FILE).is_file() or is_ahead(remote_note, read_note(directory))


def _wait(remote_note: Note, directory: Path) -> None:
    deadline = time.monotonic() + _FETCHED_WITHIN
    while _is_newer(remote_note, directory):
        if time.monotonic() > deadline:
            raise config_error(_KEY, directory, "rank 0 has not fetched it; the directory must be one that all nodes see")
        time.sleep(0.5)
