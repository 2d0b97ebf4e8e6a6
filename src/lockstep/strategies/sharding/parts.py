"""Sharded checkpoints: each process writes the shards that it holds, by torch.distributed.checkpoint, and none has the whole.

NAME.ckpt is a checkpoint as any other, but that sharded tensors in it are on torch's device "meta": shapes without content. Its
key `tensor_files`, {"folder": "parts/0", "files": {NAME: SHA-256}}, says where that is: in files of safetensors, which run no
code. torch's own format has a pickle for the list of shards.
"""

import copy
import dataclasses
import functools
import hashlib
import itertools
import shutil
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import (
    CheckpointException,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
    load,
    save,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from lockstep.atomic_files import Stamp, read_stamp, sync_folder
from lockstep.checkpointing import write_checkpoint
from lockstep.errors import config_error

_FOLDER = "parts"
Keys = tuple[Any, ...]  # that lead to a tensor in a container


def complete(key: str, path: Path, checkpoint: dict[str, Any], whole: Collection[str] | None) -> None:
    """Verify the parts of a checkpoint, and read the tensors under the keys `whole`, or all. The function that then stands under
    `tensor_files`, `fill` of their folder, reads the others. Called by lockstep.checkpointing.read_checkpoint.

    Raises ConfigError if a part is missing or damaged.
    """
    listed = checkpoint.pop("tensor_files")
    folder = path.parent / listed["folder"]
    for name, expected in listed["files"].items():
        file, at = folder / name, f"{listed['folder']}/{name}"
        if not file.is_file():
            raise config_error(key, path, f"the checkpoint is corrupt ({at} is missing)")
        if _file_sum(file, read_stamp(file)) != expected:
            raise config_error(key, path, f"the checkpoint is corrupt (at {at})")
    fill(folder, checkpoint, [*checkpoint] if whole is None else whole)
    if whole is not None:
        checkpoint["tensor_files"] = functools.partial(fill, folder)


def fill(
    folder: Path, checkpoint: dict[str, Any], keys: Collection[str], into: Callable[[Tensor, Keys], Tensor | None] | None = None
) -> None:
    """Read all tensors under these keys: into the tensor that `into` returns, of which a process reads its shard alone, if that
    has the same shape and dtype; else into a new one, whole, on the CPU."""
    targets: dict[str, Tensor] = {}

    def place(tensor: Tensor, at: Keys) -> Tensor:
        if not tensor.is_meta:
            return tensor
        target = into(tensor, at) if into else None
        if target is None or (target.shape, target.dtype) != (tensor.shape, tensor.dtype):
            target = torch.empty(tensor.shape, dtype=tensor.dtype)
        targets["/".join(map(str, at))] = target.detach()
        return target

    checkpoint.update({key: map_tensors(checkpoint[key], place, (key,)) for key in keys if key in checkpoint})
    if targets:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with warnings.catch_warnings(action="ignore"):
            load(targets, storage_reader=HuggingFaceStorageReader(str(folder)), planner=planner, no_dist=True)


@functools.cache
def _file_sum(path: Path, _stamp: Stamp | None) -> str:
    """Return the SHA-256 of a file, read once for each of its stamps."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_parts(rest: dict[str, Any], parts: dict[str, Tensor], path: Path, keep_as: str | None) -> None:
    """Write this process's shards to a file beside `path`, synced; when all processes have done so, the first of them replaces
    `path`, as write_checkpoint does. A collective. Raises on every process the error of one of them.

    Args:
        rest: the checkpoint without the content of sharded tensors.
        parts: the sharded tensors by their names.
    """
    try:
        save(parts, storage_writer=_Writer(path, keep_as, rest), planner=DefaultSavePlanner(flatten_state_dict=False))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


class _Writer(HuggingFaceStorageWriter):
    """Write one file for each process, and then a checkpoint that lists them."""

    def __init__(self, path: Path, keep_as: str | None, rest: dict[str, Any]) -> None:
        super().__init__(str(path.parent), save_distributed=True)
        self.checkpoint, self.keep_as, self.rest, self.chosen = path, keep_as, rest, ""

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Choose a folder that no checkpoint names, by the lowest number."""
        folder, used = self.checkpoint.parent, _used(self.checkpoint.parent)
        self.chosen = next(name for i in itertools.count() if (name := f"{_FOLDER}/{i}") not in used)
        shutil.rmtree(folder / self.chosen, ignore_errors=True)
        (folder / self.chosen).mkdir(parents=True)
        plans = super().prepare_global_plan(plans)
        return [dataclasses.replace(plan, storage_data=plan.storage_data | {"folder": self.chosen}) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.path = self.checkpoint.parent / plan.storage_data["folder"]
        results = super().write_data(plan, planner).wait()
        files = {result.storage_data.relative_path for result in results}
        sums = {name: _file_sum(self.path / name, read_stamp(self.path / name)) for name in files}
        written = Future[list[WriteResult]]()
        written.set_result([dataclasses.replace(result, storage_data=sums) for result in results])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        folder = self.checkpoint.parent
        for changed in (folder / self.chosen, folder / _FOLDER, folder):
            sync_folder(changed)
        files = {name: value for own in results for one in own for name, value in one.storage_data.items()}
        content = self.rest | {"tensor_files": {"folder": self.chosen, "files": files}}
        write_checkpoint(content, self.checkpoint, self.keep_as)
        used = _used(folder)
        for path in (folder / _FOLDER).iterdir():
            if f"{_FOLDER}/{path.name}" not in used:
                shutil.rmtree(path, ignore_errors=True)


def _used(folder: Path) -> set[str]:
    """Return the folders of parts that checkpoints name, those that were put aside too."""
    used: set[str] = set()
    for path in folder.glob("[!.]*.ckpt*"):
        with suppress(RuntimeError, EOFError, UnpicklingError):  # a damaged checkpoint has no use for its parts
            used.add(torch.load(path, map_location="cpu", weights_only=True, mmap=True).get("tensor_files", {}).get("folder"))
    return used


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Any, target: Any) -> Any:
    """Shard a full tensor as `target` is sharded; return anything else as it is. A tensor on the meta device, which another
    stage of a pipeline has, stays there."""
    if isinstance(target, Tensor) and target.is_meta:
        return target
    is_full = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if not (is_full and isinstance(target, DTensor) and value.shape == target.shape):
        return value
    (chunk,) = target.__create_chunk_list__()  # torch.distributed.checkpoint's protocol: which part is here
    local = value[tuple(slice(begin, begin + length) for begin, length in zip(chunk.offsets, chunk.sizes, strict=True))]
    local = local.to(target.device, copy=True)
    layout = {"shape": target.shape, "stride": target.stride()}
    return DTensor.from_local(local, target.device_mesh, target.placements, run_check=False, **layout)


def map_tensors(content: Any, change: Callable[[Tensor, Keys], Any], at: Keys = ()) -> Any:
    """Return the same containers, with change(tensor, keys that lead to it) in the place of each tensor."""
    if isinstance(content, Tensor):
        return change(content, at)
    if isinstance(content, dict):
        same = copy.copy(content)  # state_dict's versions are attributes of it
        same.update((key, map_tensors(value, change, (*at, key))) for key, value in content.items())
        return same
    if type(content) in (list, tuple):
        return type(content)(map_tensors(value, change, (*at, number)) for number, value in enumerate(content))
    return content
