"""The code that a sweep began with: a worktree in the sweep's directory, from which the sweep itself and its jobs are run."""

import atexit
import logging
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import override_key, quote, split_flags
from lockstep.config.targets import ALLOW
from lockstep.errors import ConfigError, config_error
from lockstep.extras.history.code import FILE, MAX_KIB, GitError, check_out, decode, describe_code, encode, git
from lockstep.runs.directory import read_folder
from lockstep.runs.validation import refusing

log = logging.getLogger(__name__)
KEY = "hydra.callbacks.code.snapshot"


def begin(config: DictConfig, wanted: Any) -> None:
    """Called when the sweep has its directory, and for another value of the key than false."""
    with refusing():
        if wanted is not True:
            raise config_error(KEY, wanted, "accepted is true or false")
        max_kib = OmegaConf.select(config, "events.code.max_kib")
        continue_in_snapshot(config, MAX_KIB if max_kib is None else max_kib)


def continue_in_snapshot(config: DictConfig, max_kib: int) -> None:
    """Replaces this process by the same command of the snapshot, which is made where there is none. Returns where this is that
    command, or the sweep is only printed. Raises ConfigError."""
    if config.hydra.launcher.get("dry_run"):
        return
    directory, program = read_folder(config, "hydra.sweep.dir"), Path(sys.argv[0]).resolve()
    code = directory.resolve() / "code"
    if program.is_relative_to(code) and os.environ.get("PYTHONPATH", "").startswith(_python_path(program)):
        atexit.register(_remove_unused, directory)
        log.info(f"All jobs run the code in {directory / 'code'}; to resume the sweep takes --allow {KEY}")
        return
    _check_permission(config, directory)
    root = _checkout(program)
    if not (directory / FILE).is_file():
        _make(directory, root, code, max_kib)
    elif not code.is_dir():
        check_out(root, decode((directory / FILE).read_bytes()), code)
    _replace_process(directory, root, code, code / program.relative_to(root))


def _check_permission(config: DictConfig, directory: Path) -> None:
    """Raises ConfigError where the directory has code that the command line does not ask for: it may be a stranger's."""
    is_given = any(override_key(item) == KEY for item in config.hydra.overrides.hydra)
    allowed = OmegaConf.select(config, ALLOW)
    is_permitted = is_given if allowed is None else KEY in allowed
    if not is_permitted and ((directory / FILE).exists() or (directory / "code").exists()):
        words = f"{directory} has code of its own, which may be a stranger's"
        raise config_error(KEY, "true", f"{words}; accepted is the same on the command line, of a script --allow {KEY}")


def _checkout(program: Path) -> Path:
    """The checkout of git that has the program. Raises ConfigError where there is none, or the program is not its own."""
    try:
        root = Path(git(program.parent, "rev-parse", "--show-toplevel").removesuffix("\n"))
        if git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", str(program)):
            return root
    except (GitError, OSError):
        pass
    raise config_error(KEY, "true", f"{program} is in no checkout of git; accepted is a program that is in one")


def _make(directory: Path, root: Path, code: Path, max_kib: int) -> None:
    """code.patch is written last: without it the worktree is not whole."""
    if (content := describe_code(root, max_kib)) is None:
        raise config_error(KEY, "true", f"{root} has no commit; accepted is a checkout that has")
    _remove(root, code)
    try:
        check_out(root, content, code)
    except ConfigError:
        _remove(root, code)
        raise
    (directory / FILE).write_bytes(encode(content))


def _replace_process(directory: Path, root: Path, code: Path, program: Path) -> None:
    """Configs in the checkout are taken from the snapshot, and so is the package, whichever is installed."""
    flags, overrides = split_flags(sys.argv[1:])
    overrides = [item for item in overrides if override_key(item) != "hydra.sweep.dir"]
    moved = [_moved(flag, root, code) for flag in flags]
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([_python_path(program), *([before] if before else [])])
    command = [sys.executable, str(program), *moved, *overrides, f"hydra.sweep.dir={quote(str(directory))}"]
    sys.stdout.flush()
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": path})


def _python_path(program: Path) -> str:
    return str(program.parent / "src")


def _moved(flag: str, root: Path, code: Path) -> str:
    """A flag's folder in the checkout is the snapshot's."""
    name, equals, value = flag.rpartition("=")
    path = Path(value).resolve()
    is_own = path.is_relative_to(root) and path.is_dir() and (code / path.relative_to(root)).is_dir()
    return f"{name}{equals}{code / path.relative_to(root)}" if is_own else flag


def _remove_unused(directory: Path) -> None:
    """A sweep that was refused leaves nothing."""
    if (directory / "manifest.json").exists():
        return
    code = directory / "code"
    _remove(code, code)
    for name in (FILE, "lock"):
        (directory / name).unlink(missing_ok=True)
    try:
        while directory != Path.cwd():
            directory.rmdir()
            directory = directory.parent
    except OSError:  # there is something in it
        return


def _remove(checkout: Path, code: Path) -> None:
    """Takes away a worktree, and what its checkout knows of it. Raises ConfigError for a folder that is none."""
    try:
        if code.is_symlink() or code.exists():
            git(checkout, "worktree", "remove", "--force", str(code))
    except GitError as error:
        raise config_error(
            "hydra.sweep.dir", code.parent, f"{error}; accepted is a directory without a folder {code.name}"
        ) from None
