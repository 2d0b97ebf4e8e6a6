"""The code of a project under git as one file: its commit, and the changes of its working tree."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import config_error

FILE = "code.patch"  # in a run's directory
COMMIT = b"commit "  # begins the first line, which git apply passes over, as it does names of files that were left out
SECONDS = 60  # limit of one call of git


def describe_code(folder: Path, max_kib: int) -> bytes | None:
    """Return the commit of the checkout that a folder is in, and a patch of its working tree; None without a commit.

    The patch has the changes of tracked files, and files that are neither tracked nor ignored. Of these each larger than
    `max_kib` is named and left out.
    """
    try:
        root = Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
        commit = git(root, "rev-parse", "HEAD")
    except (subprocess.CalledProcessError, OSError):
        return None
    if not git(root, "status", "--porcelain"):
        return COMMIT + commit
    names = git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    untracked = {name: (root / os.fsdecode(name)).lstat().st_size for name in names if name and not name.endswith(b"/")}
    small = [name for name, size in untracked.items() if size <= max_kib * 1024]
    left_out = b"".join(b"left out %s (over %d KiB)\n" % (name, max_kib) for name in untracked if name not in small)
    with tempfile.TemporaryDirectory() as own:  # an index and a store of objects: the checkout's own are not written to
        objects = os.fsdecode(git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip())
        env = {"GIT_INDEX_FILE": f"{own}/index", "GIT_OBJECT_DIRECTORY": own, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
        git(root, "read-tree", "HEAD", env=env)
        git(root, "add", "--update", env=env)
        if small:
            git(root, "add", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=b"\0".join(small), env=env)
        patch = git(root, "diff", "--cached", "--binary", "--no-ext-diff", "--no-color", "HEAD", env=env)
    return COMMIT + commit + left_out + patch


def check_out(checkout: Path, code: bytes, path: Path) -> None:
    """Make a worktree of the checkout with the code that was described. Raises ConfigError where git can't."""
    commit = code.partition(b"\n")[0].removeprefix(COMMIT).decode()
    try:
        git(checkout, "worktree", "add", "--quiet", "--detach", "--", str(path), commit)
        if b"\ndiff --git " in code:
            git(path, "apply", "--whitespace=nowarn", "-", stdin=code)
    except subprocess.CalledProcessError as error:
        words = f"{os.fsdecode(error.stderr)}; choose a run whose commit is in {checkout}, and a PATH that is not there"
        raise config_error("RUN_DIR", commit, words) from None


def git(folder: Path, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    command = ["git", "--literal-pathspecs", *arguments]
    variables = os.environ | (env or {})
    done = subprocess.run(command, cwd=folder, input=stdin, env=variables, capture_output=True, timeout=SECONDS, check=True)
    return done.stdout
