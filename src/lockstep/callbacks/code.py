"""The code that a run is trained with, as one file: the commit of the project, and the changes of its working tree."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from lockstep.errors import config_error

log = logging.getLogger(__name__)

FILE = "code.patch"  # in a run's directory
COMMIT = b"commit "  # begins the first line, which git apply passes over
SUFFIXES = (".py", ".pyx", ".yaml", ".yml", ".toml", ".cfg", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
SECONDS = 60  # limit of one call of git


class KeepCode(Callback):
    """Write code.patch when training begins. A start with other code than all before writes another file, code.2.patch.

    Args:
        max_kib: size limit of a file that is not tracked; a larger one is left out.
    """

    def __init__(self, max_kib: int = 1024) -> None:
        self.max_kib = max_kib

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            try:
                self.write(Path(trainer.default_root_dir))
            except (subprocess.SubprocessError, OSError) as error:
                log.warning(f"{FILE} is not written ({error}); the run goes on")

    def write(self, directory: Path) -> None:
        code = describe_code(Path(sys.argv[0]).resolve().parent, self.max_kib)
        before = sorted(directory.glob("code*.patch"))
        if code is None or any(path.read_bytes() == code for path in before):
            return
        path = directory / (f"code.{len(before) + 1}.patch" if before else FILE)
        path.write_bytes(code)
        if before:
            log.warning(f"the code has changed since this run began; {path.name} has the new code")


def describe_code(folder: Path, max_kib: int) -> bytes | None:
    """Return the commit of the checkout that a folder is in, and a patch of its working tree; None without a commit.

    The patch has the changes of tracked files, and files of code of at most `max_kib` that are neither tracked nor ignored.
    """
    try:
        found = git(folder, "rev-parse", "--show-toplevel", "HEAD", "--git-path", "index")
    except (subprocess.CalledProcessError, OSError):
        return None
    checkout, commit, index = map(os.fsdecode, found.splitlines())
    root = Path(checkout)
    names = git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    sizes = {name: (root / os.fsdecode(name)).lstat().st_size for name in names if _is_code(Path(os.fsdecode(name)))}
    small = [name for name, size in sizes.items() if size <= max_kib * 1024]
    if len(small) < len(sizes):
        log.warning(f"{FILE} lacks {len(sizes) - len(small)} untracked file(s) of over {max_kib} KiB")
    with tempfile.TemporaryDirectory() as own:  # a copy of the index: the checkout's is not written to
        env = {"GIT_INDEX_FILE": shutil.copy2(folder / index, own)}
        if small:
            add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(root, *add, stdin=b"\0".join(small), env=env)
        return COMMIT + os.fsencode(f"{commit}\n") + git(root, "diff", "--binary", "--no-ext-diff", "--no-color", "HEAD", env=env)


def _is_code(path: Path) -> bool:
    """Return whether the name is that of a file of code or config; a hidden folder, a run's .hydra for example, has none."""
    return path.suffix in SUFFIXES and not any(part.startswith(".") for part in path.parts[:-1])


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
