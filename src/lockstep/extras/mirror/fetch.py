"""The copy of a run, brought to this machine: whole, or not at all."""

import shutil
from pathlib import Path

from lockstep import console
from lockstep.errors import config_error
from lockstep.extras.mirror.mirror import Remote, is_ahead, read_note
from lockstep.runs.directory import absolute, aside
from lockstep.runs.locks import check_free


def bring(url: str) -> Path:
    """Fetch the run that was copied to `url`, to the place where it was below the working directory, and return that.

    A directory that is as new as the copy is left alone; an older one is moved to DIRECTORY.before-1.

    Raises:
        ConfigError: There is no such copy, or the directory is another run's or in use.
    """
    remote = Remote(url.rstrip("/"))
    there = remote.read_note()
    if not there:
        raise config_error("URL", url, "has no mirror.json; give the URL that a run's mirror.json says")
    directory = absolute(there["directory"])
    here, partial = read_note(directory), directory.with_name(f".{directory.name}.partial")
    if directory.exists():
        if here.get("starts", [])[:1] != there["starts"][:1]:
            raise config_error("URL", url, f"{directory} is another run's; move it, or work in another folder")
        if not is_ahead(there, here):
            return directory
        check_free(directory, "URL")
    console.say(f"Fetching {url} to {directory}.")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    remote.get(partial)
    if directory.exists():
        earlier = aside(directory)
        directory.rename(earlier)
        console.say(f"{directory} was older than its copy; it is now {earlier.name}.")
    return partial.rename(directory)
