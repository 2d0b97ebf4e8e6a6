"""What a run relies on of the file system that its directory is on, and what is lost where that does not hold."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.atomic_files import replace_text, sync_folder

_PROBE = ".probe"
_MOUNTS = Path("/proc/self/mountinfo")
# Mounts whose locks the server never hears of: by the words of nfs(5), mount.cifs(8) and mount.lustre(8), and by what keeps
# files in a bucket or speaks sftp, neither of which knows locks.
_LOCAL_LOCKS = {
    r"nfs4?": {"nolock", "local_lock=all", "local_lock=posix"},
    r"cifs|smb3": {"nobrl"},
    r"lustre": {"localflock"},
    r"fuse\.(sshfs|rclone|s3fs|gcsfuse|mount-s3|goofys)": {""},
}


def shortcomings(folder: Path) -> Iterator[str]:
    """One line for each thing that a run relies on and that does not hold in its directory; takes a few milliseconds.

    That a file can be made, synced and renamed is not among them: run.json, the first file of a run, would not be there. Nor
    are locks that are refused, see lockstep.runs.locks.
    """
    if (where := _keeps_locks_to_itself(folder)) is not None:
        yield f"{folder}: locks on this {where} are seen on this host alone; on another one a second run would not be refused"
    try:
        sync_folder(folder, strict=True)
    except OSError as error:
        lost = "after a loss of power the newest checkpoint may be gone, and there the one before it"
        yield f"{folder}: this file system can't sync a folder ({error.strerror}); {lost}"
    if not _reads_on(folder / _PROBE):
        lost = "a checkpoint that is read while it is replaced may come out damaged"
        yield f"{folder}: on this file system a file that is open changes when it is replaced; {lost}"


def _keeps_locks_to_itself(folder: Path) -> str | None:
    """The words for a mount that does so, nfs4 (nolock) say."""
    kind, options = _find_mount(folder)
    for pattern, words in _LOCAL_LOCKS.items():
        if re.fullmatch(pattern, kind) and (matches := sorted(words & {*options, ""})):
            return f"{kind} mount ({matches[-1]})" if matches[-1] else f"{kind} mount"
    return None


def _find_mount(folder: Path) -> tuple[str, list[str]]:
    """The type of the file system and the options of its mount, by proc_pid_mountinfo(5); nothing where there is no /proc."""
    place, best = os.path.realpath(folder), ("", [])
    with suppress(OSError):
        longest = -1
        for line in _MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
            if len(point) >= longest and (place + "/").startswith(point.rstrip("/") + "/"):
                kind, _, options = after.split(" ", 2)
                longest, best = len(point), (kind, options.split(","))
    return best


def _reads_on(path: Path) -> bool:
    """Does who has opened a file read it to its end, though another has taken its place?"""
    try:
        replace_text(path, "old")
        with path.open() as file:
            replace_text(path, "new")
            return (file.read(), path.read_text()) == ("old", "new")
    except OSError:  # ESTALE
        return False
    finally:
        with suppress(OSError):
            path.unlink()
