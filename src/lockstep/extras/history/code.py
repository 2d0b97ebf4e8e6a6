"""The code of a project under git as one file: its commit, and what the working tree has beside it."""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.errors import config_error
from lockstep.runs.record import GIT_STATUS, read_git_status

FILE = "code.patch"  # of a run's directory
COMMIT, LEFT_OUT = "commit ", "left out "  # how lines before the patch begin, which git apply passes over
MAX_KIB = 1024  # of a file that git does not track
SECONDS = 60  # of one call of git


class GitError(RuntimeError):
    """What git has said."""


def describe_code(folder: Path, max_kib: int) -> str | None:
    """The commit of the checkout that a folder is in, and a patch with all that it lacks: changes of tracked files, and files
    that are neither tracked nor ignored. Of these each larger than `max_kib` is named and left out. None without a commit."""
    try:
        commit, is_dirty = read_git_status(git(folder, *GIT_STATUS))
    except (GitError, OSError):
        return None
    if commit is None:
        return None
    if not is_dirty:
        return f"{COMMIT}{commit}\n"
    root = Path(git(folder, "rev-parse", "--show-toplevel").removesuffix("\n"))
    untracked = [
        name for name in git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0") if name[-1:] not in ("", "/")
    ]
    small = [name for name in untracked if _size(root / name) <= max_kib * 1024]
    left_out = "".join(f"{LEFT_OUT}{name} (over {max_kib} KiB)\n" for name in untracked if name not in small)
    return f"{COMMIT}{commit}\n{left_out}{_patch(root, small)}"


def read_code(run_dir: Path) -> str | None:
    """What a run has kept; None where there is nothing."""
    path = run_dir / FILE
    return decode(path.read_bytes()) if path.is_file() else None


def fingerprint(code: str) -> str:
    """Twelve characters, equal where commit and patch are."""
    return hashlib.sha256(encode(code)).hexdigest()[:12]


def check_out(checkout: Path, code: str, path: Path) -> None:
    """Makes a worktree of the checkout with the code that was described. Raises ConfigError where git can't."""
    if path.exists():
        raise config_error("PATH", path, "is there; accepted is a path that is not")
    commit = code.partition("\n")[0].removeprefix(COMMIT)
    if not re.fullmatch("[0-9a-f]{40,64}", commit):
        raise config_error(FILE, commit, "accepted is the file that a run has written, which begins with its commit")
    try:
        git(checkout, "worktree", "add", "--quiet", "--force", "--detach", str(path), commit)
        if "\ndiff --git " in code:
            git(path, "apply", "--whitespace=nowarn", "-", stdin=code)
    except GitError as error:
        raise config_error("RUN_DIR", commit, f"{error}; accepted is a run whose commit is in {checkout}") from None


def _patch(root: Path, untracked: Sequence[str]) -> str:
    """Makes the patch by an index and a store of objects of its own: nothing of the checkout's own is written."""
    with tempfile.TemporaryDirectory() as folder:
        objects = git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip()
        own = {"GIT_INDEX_FILE": f"{folder}/index", "GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
        git(root, "read-tree", "HEAD", env=own)
        git(root, "add", "--update", env=own)
        if untracked:
            git(root, "add", "--pathspec-from-file=-", "--pathspec-file-nul", stdin="\0".join(untracked), env=own)
        return git(root, "diff", "--cached", "--binary", "--no-ext-diff", "--no-color", "HEAD", env=own)


def git(folder: Path, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
    """What it prints; bytes that are no text, and ends of lines, are kept as they are. Raises GitError."""
    command, own = ["git", "--literal-pathspecs", *arguments], os.environ | (env or {})
    try:
        done = subprocess.run(
            command, cwd=folder, input=encode(stdin), env=own, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} takes over {SECONDS} s") from error
    if done.returncode:
        raise GitError(" ".join(decode(done.stderr).split()) or f"git {arguments[0]} ended with code {done.returncode}")
    return decode(done.stdout)


def encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def decode(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _size(path: Path) -> int:
    return path.lstat().st_size if path.is_symlink() or path.exists() else 0
