"""Checkpoints that are written whole or not at all, and verified when they are read."""

import functools
import logging
import os
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from lockstep.atomic_files import Stamp, read_stamp, remove_partial_files, replacing, sync_folder
from lockstep.errors import ConfigError, NamedFailure, config_error
from lockstep.launchers.environment import is_rank_zero

log = logging.getLogger(__name__)

# Keys of the state that a resumed run needs; a save with an object in it fails. Elsewhere an object is left out.
_NEEDED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "current_model_state", "averaging_state")
_BY_ITEM = ("callbacks", "hyper_parameters", "datamodule_hyper_parameters")  # of which single items may be left out
# From the newest to the oldest. best.ckpt comes last: it was saved after a validation, not at a step boundary.
_RESUMED_FROM = ("last.ckpt", "previous.ckpt", "best.ckpt")


def write_checkpoint(content: dict[str, Any], path: Path, keep_as: str | None = None) -> None:
    """Replace `path` by a checkpoint that has been verified and synced. The earlier file stays until then, and afterwards under
    the name `keep_as`.

    Raises:
        OSError: The disk is full or read-only, for example.
        ConfigError: The content would not load again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "wb") as file:
        torch.save(_with_plain_numbers(content), file)
        file.flush()
        os.fsync(file.fileno())  # before the earlier file is renamed
        read_checkpoint("checkpoint", Path(file.name), whole=())
        if keep_as is not None and path.is_file():
            path.replace(path.with_name(keep_as))
    sync_folder(path.parent)


def read_checkpoint(key: str, path: Path, whole: Sequence[str] | None = None) -> dict[str, Any]:
    """Verify a checkpoint by the archive's checksums, and load it to the CPU with weights_only=True.

    Args:
        key: Config key that an error names.
        path: The file. If it lists `tensor_files`, these are verified too.
        whole: Keys under which tensors are read from such files; None for all.

    Raises:
        ConfigError: The file is missing or damaged, or has objects that are no plain containers or tensors.
    """
    if not path.is_file():
        words = f"no such file: {path.absolute()}; use a checkpoint, RUN_DIR/checkpoints/best.ckpt for example"
        raise config_error(key, path, words)
    try:
        damaged = _first_damaged(path, read_stamp(path))
    except Exception as error:  # BadZipFile, zlib.error, RuntimeError, ...
        raise config_error(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise config_error(key, path, f"the checkpoint is corrupt (at {damaged})")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # EOFError, RuntimeError, UnpicklingError, ...
        raise config_error(key, path, f"not a checkpoint that loads with weights_only=True ({_reason(error)})") from error
    if isinstance(checkpoint, dict) and "tensor_files" in checkpoint:
        get_object("lockstep.strategies.sharding.parts.complete")(key, path, checkpoint, whole)
    return checkpoint


@functools.cache
def _first_damaged(path: Path, _stamp: Stamp | None) -> str | None:
    """Return the first member whose checksum is wrong. This reads the whole file, so once for each of its stamps."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def latest_valid_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to resume a run from, or None if there is none. Rename damaged ones to NAME.damaged, with a warning,
    so that the next save does not keep one in place of a sound one.

    Raises:
        ConfigError: All are damaged. A new start would overwrite them.
    """
    if is_rank_zero():
        remove_partial_files(folder)  # a save that was killed leaves them
    damaged: list[Path] = []
    for path in (folder / name for name in _RESUMED_FROM if (folder / name).is_file()):
        try:
            read_checkpoint("checkpoint", path, whole=())
        except ConfigError as error:
            log.warning(f"{error}; looking for an older one")
            damaged.append(path)
            continue
        for one in damaged if is_rank_zero() else ():
            one.replace(f"{one}.damaged")
        if damaged:
            log.warning(f"continuing from {path} instead")
        return path
    if damaged:
        words = f"every checkpoint is damaged: {', '.join(one.name for one in damaged)}; move them away to start anew"
        raise config_error("resume", folder.parent, words)
    return None


def _reason(error: Exception) -> str:
    """Return the error in one line, without torch's advice to load it all the same."""
    match = re.search(r"GLOBAL [\w.]+", str(error))
    return match.group() if match else " ".join(str(error).partition("\n")[0].split()) or type(error).__name__


def why_unreadable(value: Any) -> str | None:
    """Return why a value would not load again from a checkpoint, or None."""
    buffer = BytesIO()
    try:
        without_tensors = apply_to_collection(_with_plain_numbers(value), Tensor, lambda _: 0)  # to save memory
        torch.save(without_tensors, buffer)
        torch.load(BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:  # of pickle, of torch's reader, or of a class
        return _reason(error)
    return None


class AtomicCheckpointIO(CheckpointIO):
    """Write checkpoints whole or not at all, and read none that is damaged or runs code.

    Values that a module or a callback has added to a checkpoint, and that would not load again, are left out with a warning.
    `storage_options={"keep_as": NAME}` keeps the file that is replaced under that name.
    """

    def __init__(self) -> None:
        self._left_out: set[str] = set()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        with naming_failed_write(path):
            write_checkpoint(self._loadable(checkpoint), Path(path), (storage_options or {}).get("keep_as"))

    def _loadable(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        needed = {key: checkpoint[key] for key in _NEEDED if key in checkpoint}
        others = self._readable({key: value for key, value in checkpoint.items() if key not in (*_NEEDED, *_BY_ITEM)})
        by_item = {key: self._readable(checkpoint[key], f"{key}.") for key in _BY_ITEM if key in checkpoint}
        return needed | others | by_item

    def _readable(self, values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return the values that load again; warn once about each of the others."""
        values = {name: value for name, value in values.items() if prefix + name not in self._left_out}
        if why_unreadable(values) is None:
            return values
        for name, value in values.items():
            if (reason := why_unreadable(value)) is not None:
                log.warning(f"Checkpoints are written without {prefix}{name}, which a resumption will lack: {reason}")
                self._left_out.add(prefix + name)
        return {name: value for name, value in values.items() if prefix + name not in self._left_out}

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load to the CPU, always with weights_only=True."""
        return read_checkpoint("checkpoint", Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class CheckpointError(NamedFailure):
    """A checkpoint could not be written."""


@contextmanager
def naming_failed_write(path: str | Path) -> Iterator[None]:
    """Raise CheckpointError, one line, for an error in the block, which writes a checkpoint."""
    try:
        yield
    except Exception as error:
        system = error.__context__ if isinstance(error, RuntimeError) else error  # torch's writer raises RuntimeError for OSError
        reason = system.strerror if isinstance(system, OSError) and system.strerror else _reason(error)
        raise CheckpointError(f"{path}: the checkpoint was not written ({reason}); earlier ones are untouched") from None


def _with_plain_numbers(content: Any) -> Any:
    """Convert numpy's numbers to Python's. A rate computed by numpy.cos is one, and would not load again."""
    if isinstance(content, numpy.generic):
        return content.item()
    if type(content) in (dict, OrderedDict):
        plain = copy(content)  # with the attribute _metadata of a state_dict
        plain.clear()
        plain.update((_with_plain_numbers(key), _with_plain_numbers(value)) for key, value in content.items())
        return plain
    if type(content) in (list, tuple):
        return type(content)(map(_with_plain_numbers, content))
    return content
