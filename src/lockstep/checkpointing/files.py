"""One checkpoint file: written so that it is whole or not there, and verified before it is used."""

import logging
import os
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lockstep.atomic_files import remove_partial_files, replacing, sync_folder
from lockstep.config.checkpoint_file import check_checkpoint
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import is_rank_zero
from lockstep.places import read_settings

log = logging.getLogger(__name__)

_READABLE = "numbers, strings, tensors, and lists and dicts of these"
# From the newest to the oldest. best.ckpt comes last: it is of the end of a validation, not of a step boundary.
CONTINUED_FROM = ("last.ckpt", "previous.ckpt", "best.ckpt")


def write_checkpoint(content: dict[str, Any], path: Path, keep_as: str | None = None) -> None:
    """Replaces `path` in one step with a checkpoint that has been verified and synced; what was there stays until then,
    and afterwards too under the name `keep_as`.

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
    """Verifies, then loads to the CPU: by the archive's checksums, which find what torch's reader passes over, then by
    that reader, restricted to plain containers and tensors. What one with `tensor_files` keeps in other files, the reader in
    conf/checkpoints.yaml verifies, and puts in its place under the keys `whole`, or everywhere.

    Raises ConfigError, naming `key` and the file, for what is missing or damaged, or needs code to be run.
    """
    check_checkpoint(key, path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch's reader raises what it meets: EOFError, RuntimeError, UnpicklingError, ...
        raise config_error(key, path, f"not a checkpoint that loads with weights_only=True ({_reason(error)})") from error
    if isinstance(checkpoint, dict) and "tensor_files" in checkpoint:
        if (reader := read_settings("checkpoints.yaml").get("reader")) is None:
            raise config_error(key, path, "has tensors in other files; accepted with a reader in conf/checkpoints.yaml")
        resolve_name(reader)(key, path, checkpoint, whole)
    return checkpoint


def latest_valid_checkpoint(folder: Path, run_id: str | None = None) -> Path | None:
    """The checkpoint to continue a run from. Those that are damaged, or carry the id of another run, are named, passed over,
    and put aside as NAME.damaged or NAME.foreign, so that none takes the place of a sound one. None where there is none.

    Raises ConfigError where there are some and none will do: to begin again would write over them.
    """
    if is_rank_zero():
        remove_partial_files(folder)  # of a save that was killed
    passed_over: dict[str, str] = {}
    for path in (folder / name for name in CONTINUED_FROM):
        if not path.is_file():
            continue
        try:
            checkpoint = read_checkpoint("checkpoint", path, whole=())
        except ConfigError as error:
            log.warning(f"{error}; looking for an older one")
            passed_over[path.name] = "damaged"
            continue
        if run_id is not None and run_id_in(checkpoint) not in (None, run_id):
            log.warning(f"{path}: of another run than this; looking for an older one")
            passed_over[path.name] = "foreign"
            continue
        for name, what in passed_over.items() if is_rank_zero() else ():
            (folder / name).replace(folder / f"{name}.{what}")
        if passed_over:
            log.warning(f"continuing from {path} instead")
        return path
    if passed_over:
        all_are = " or ".join(sorted({*passed_over.values()})).replace("foreign", "another run's") + f": {', '.join(passed_over)}"
        raise config_error("resume", folder.parent, f"every checkpoint is {all_are}; move them away to start anew")
    return None


def run_id_in(checkpoint: dict[str, Any]) -> str | None:
    """Which run has saved it, as lockstep.callbacks.LastCheckpoint notes among the states of callbacks."""
    states = checkpoint.get("callbacks", {}).values()
    return next((state["run_id"] for state in states if isinstance(state, dict) and "run_id" in state), None)


def _reason(error: Exception) -> str:
    """In one line, and without torch's advice to load it all the same."""
    text = str(error)
    match = re.search(r"Unsupported [^\n]*?(?= was not an allowed|\.\s|\n|$)|GLOBAL \S+", text)
    return match.group() if match else " ".join((text.splitlines() or [type(error).__name__])[0].split())


def name_unreadable(content: Any, name: str = "") -> str | None:
    """Says which value in the content of a checkpoint, and of which class, has it not load again; None if it does."""
    try:
        torch.save(apply_to_collection(content, Tensor, lambda _: 0), buffer := BytesIO())  # not once more in memory
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # whatever pickle or torch's reader raise
        parts = content if isinstance(content, dict) else dict(enumerate(content)) if isinstance(content, list | tuple) else {}
        found = (name_unreadable(value, f"{name}.{key}" if name else str(key)) for key, value in parts.items())
        kind = f"{type(content).__module__}.{type(content).__qualname__}"
        return next((one for one in found if one is not None), f"{name} is a {kind}; accepted are {_READABLE}")
    return None


def _copy_name(path: Path, other: Path) -> None:
    """Both names for the same content, so that at no time there is neither. A rename where links are not to be had."""
    link = other.with_name(f".{other.name}.partial")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        path.replace(other)
    else:
        link.replace(other)
        link.unlink(missing_ok=True)  # rename(2) leaves it where both are names of one file already
