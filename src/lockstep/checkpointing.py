"""Checkpoints that cannot tear: written, verified and read, also through Lightning's interface for that."""

import functools
import logging
import os
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from hydra.utils import get_object
from lightning.fabric.plugins.io import CheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lockstep.atomic_files import remove_partial_files, replacing, sync_folder
from lockstep.errors import ConfigError, NamedFailure, config_error
from lockstep.launchers.environment import is_rank_zero

log = logging.getLogger(__name__)

# Without these a run does not go on as it was; an object in them is refused, and elsewhere left out.
_NEEDED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "current_model_state", "averaging_state")
# From the newest to the oldest. best.ckpt comes last: it was saved after a validation, not at a step boundary.
CONTINUED_FROM = ("last.ckpt", "previous.ckpt", "best.ckpt")


def write_checkpoint(content: dict[str, Any], path: Path, keep_as: str | None = None) -> None:
    """Replace `path` in one step with a checkpoint that has been verified and synced. The earlier file stays until then, and
    afterwards too under the name `keep_as`.

    Raises OSError where the disk is full or read-only, ConfigError for content that would not load again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "wb") as file:
        torch.save(content, file)
        file.flush()  # it is read by its name
        read_checkpoint("checkpoint", Path(file.name), whole=())
        if keep_as is not None and path.is_file():
            _copy_name(path, path.with_name(keep_as))
    sync_folder(path.parent)


def read_checkpoint(key: str, path: Path, whole: Sequence[str] | None = None) -> dict[str, Any]:
    """Verify, then load to the CPU: by the archive's checksums, which find what torch's reader passes over, then by that reader,
    restricted to plain containers and tensors. The other files of a checkpoint with `tensor_files` are verified, and their
    tensors inserted under the keys `whole`, or everywhere.

    Raises ConfigError, naming `key` and the file, if it is missing or damaged, or needs code to be run.
    """
    check_checkpoint(key, path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch's reader raises what it meets: EOFError, RuntimeError, UnpicklingError, ...
        raise config_error(key, path, f"not a checkpoint that loads with weights_only=True ({_reason(error)})") from error
    if isinstance(checkpoint, dict) and "tensor_files" in checkpoint:
        get_object("lockstep.strategies.sharding.parts.complete")(key, path, checkpoint, whole)
    return checkpoint


def check_checkpoint(key: str, path: Path) -> None:
    """Raise ConfigError unless a checkpoint is there and is a whole zip archive, which is what torch.save writes."""
    if not path.is_file():
        accepted = f"no such file: {path.absolute()}; use a checkpoint, RUN_DIR/checkpoints/best.ckpt for example"
        raise config_error(key, path, accepted)
    try:
        stat = path.stat()
        damaged = _first_damaged(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except Exception as error:  # zipfile raises what it meets: BadZipFile, zlib.error, RuntimeError, ...
        raise config_error(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise config_error(key, path, f"the checkpoint is corrupt (at {damaged})")


@functools.cache
def _first_damaged(path: Path, *_: int) -> str | None:
    """Return the first member whose checksum is wrong. Read the whole file, so once a process: the same number, time and size
    are the same file."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def latest_valid_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to continue a run from; None if there is none. Those that are damaged are logged, passed over, and
    renamed to NAME.damaged, so that none takes the place of a sound one.

    Raises ConfigError if there are some and none is usable: to begin again would write over them.
    """
    if is_rank_zero():
        remove_partial_files(folder)  # a save that was killed leaves them
    damaged: list[str] = []
    for path in (folder / name for name in CONTINUED_FROM):
        if not path.is_file():
            continue
        try:
            read_checkpoint("checkpoint", path, whole=())
        except ConfigError as error:
            log.warning(f"{error}; looking for an older one")
            damaged.append(path.name)
            continue
        for name in damaged if is_rank_zero() else ():
            (folder / name).replace(folder / f"{name}.damaged")
        if damaged:
            log.warning(f"continuing from {path} instead")
        return path
    if damaged:
        words = f"every checkpoint is damaged: {', '.join(damaged)}; move them away to start anew"
        raise config_error("resume", folder.parent, words)
    return None


def _reason(error: Exception) -> str:
    """Return the error in one line, without torch's advice to load it all the same."""
    match = re.search(r"GLOBAL [\w.]+", str(error))
    return match.group() if match else " ".join(str(error).partition("\n")[0].split()) or type(error).__name__


def why_unreadable(value: Any) -> str | None:
    """Return why a value would not load again from a checkpoint; None if it does."""
    buffer = BytesIO()
    try:
        torch.save(apply_to_collection(value, Tensor, lambda _: 0), buffer)  # without a second copy in memory
        torch.load(BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:  # whatever pickle or torch's reader raise
        return _reason(error)
    return None


def _copy_name(path: Path, other: Path) -> None:
    """Give both names to the same content, so that one is always there. Rename if the file system has no links."""
    link = other.with_name(f".{other.name}.partial")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        path.replace(other)
    else:
        link.replace(other)
        link.unlink(missing_ok=True)  # rename(2) leaves it where both are names of one file already


class AtomicCheckpointIO(CheckpointIO):
    """Write checkpoints that are whole or not there, and read none that is damaged or needs code to be run.

    What a module or a callback adds to a checkpoint, and would not load again, is left out, with a warning.

    Args:
        async: (a keyword of Python's, so it comes as **choice) copy the state, write it in the background. One write is in
            flight at a time; the next save and `teardown` wait for it, and raise what went wrong in it.

    `storage_options={"keep_as": NAME}` of a save keeps the file it replaces under that name.
    """

    def __init__(self, **choice: bool) -> None:
        self.asynchronous = choice.pop("async", False)
        if choice:
            raise TypeError(f"AtomicCheckpointIO got an unexpected keyword argument '{next(iter(choice))}'")
        self._thread: ThreadPoolExecutor | None = None
        self._in_flight: Future[None] | None = None
        self._left_out: set[str] = set()  # keys of values that would not load again

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        keep_as = (storage_options or {}).get("keep_as")
        self.save(checkpoint, Path(path), lambda content: self._write_readable(content, Path(path), keep_as))

    def _write_readable(self, content: dict[str, Any], path: Path, keep_as: str | None) -> None:
        try:
            write_checkpoint(_without(content, self._left_out), path, keep_as)
        except Exception:
            states = {f"callbacks.{name}": state for name, state in content.get("callbacks", {}).items()}
            added = {name: value for name, value in (content | states).items() if name not in {*_NEEDED} | self._left_out}
            reasons = {name: reason for name, value in added.items() if (reason := why_unreadable(value)) is not None}
            if not reasons:
                raise
            for name, reason in reasons.items():
                log.warning(f"Checkpoints are written without {name}, which a resumption will lack: {reason}")
            self._left_out |= reasons.keys()
            write_checkpoint(_without(content, self._left_out), path, keep_as)

    def save(self, content: Any, path: Path, write: Callable[[Any], None]) -> None:
        """Call `write(content)` to write the checkpoint `path`; in the background, with a copy on the CPU."""
        self.wait()
        content = _with_plain_numbers(content)
        if self.asynchronous:
            self._thread = self._thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            self._in_flight = self._thread.submit(self._write, _snapshot(content), path, write)
        else:
            self._write(content, path, write)

    def _write(self, content: Any, path: Path, write: Callable[[Any], None]) -> None:
        """Raise the error that has kept a checkpoint from being written, in one line."""
        try:
            write(content)
        except Exception as error:
            system = error.__context__ if isinstance(error, RuntimeError) else error  # torch's writer makes it a RuntimeError
            reason = getattr(system, "strerror", None) or _reason(error)
            line = f"{path}: the checkpoint was not written ({reason}); earlier ones are untouched"
            raise CheckpointError(line) from (None if isinstance(error, ConfigError) else error)

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load to the CPU, with weights_only=True whatever is asked for."""
        self.wait()
        return read_checkpoint("checkpoint", Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Wait for the write in flight first: until then the file to be removed may be the only one."""
        self.wait()
        Path(path).unlink(missing_ok=True)

    def wait(self) -> None:
        """Wait until no write is in flight."""
        if self._in_flight is not None:
            done, self._in_flight = self._in_flight, None
            done.result()

    def teardown(self) -> None:
        thread, self._thread = self._thread, None
        with thread or nullcontext():  # the thread ends with the block
            self.wait()


def _without(content: dict[str, Any], names: set[str]) -> dict[str, Any]:
    if not names:
        return content
    states = {name: state for name, state in content.get("callbacks", {}).items() if f"callbacks.{name}" not in names}
    return {name: value for name, value in content.items() if name not in names} | {"callbacks": states}


class CheckpointError(NamedFailure):
    """A checkpoint could not be written."""


def _with_plain_numbers(content: Any) -> Any:
    """Return it with Python's numbers for numpy's (a mean or a score in a callback's state), which would not load again."""
    if isinstance(content, numpy.generic):
        return content.item()
    if type(content) in (dict, OrderedDict):
        plain = copy(content)  # with the versions of modules, an attribute of a state_dict
        plain.clear()
        plain.update((_with_plain_numbers(key), _with_plain_numbers(value)) for key, value in content.items())
        return plain
    if type(content) in (list, tuple):
        return type(content)(map(_with_plain_numbers, content))
    return content


def _snapshot(content: Any) -> Any:
    """Return a copy on the CPU. By lightning_utilities' apply_to_collection a range or a frozen dataclass would raise."""
    if isinstance(content, Tensor) and not content.is_meta:
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: _snapshot(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(map(_snapshot, content))
    return content
