"""The copy of a run, brought to this machine: whole, or not at all."""

import shutil
from pathlib import Path

from lockstep import console
from lockstep.errors import config_error
from lockstep.extras.mirror.mirror import Remote, is_ahead, read_note
from lockstep.runs.directory import absolute


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
