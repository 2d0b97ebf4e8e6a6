"""Checkpoints in parts: each process writes the shards that it holds, and none ever has the whole.

NAME.ckpt is a checkpoint as any other, but that sharded tensors in it are on torch's device "meta": shapes without content. Its
key `tensor_files` says in which files beside it that is:

    {"save": SAVE, "files": {FILE: SHA-256}, "tensors": {NAME: [{"offsets": [0, 0], "sizes": [4, 2], "file": FILE}]}}

Each of these is a checkpoint as well: {"save": SAVE, "tensors": {"NAME@0,0": Tensor}}. All are read with weights_only=True.
torch.distributed.checkpoint plans here who writes and reads what; its own format has a pickle for this list, by which a directory
could run code (torch/distributed/checkpoint/filesystem.py).
"""

import functools
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata

from lockstep.atomic_files import Stamp, is_like, read_stamp
from lockstep.checkpointing import read_checkpoint
from lockstep.errors import config_error
from lockstep.extras.dtensors.dtensors import shard_like
from lockstep.extras.sharding.shards import map_tensors

_SHAPE = {
    "save": str,
    "files": {str: str},
    "tensors": {str: [{"offsets": [int], "sizes": [int], "file": str}]},
}
Keys = tuple[Any, ...]  # that lead to a tensor in a checkpoint
KNOWN_SUMS: dict[tuple[Path, Stamp | None], str] = {}


def tensor_name(at: Keys) -> str:
    return "/".join(map(str, at))


def piece_name(name: str, offsets: Collection[int]) -> str:
    return f"{name}@{','.join(map(str, offsets))}"


class Parts:
    """Tensors of a checkpoint whose content is in other files. Raises ConfigError if one is missing or damaged."""

    def __init__(self, key: str, path: Path, listed: Any) -> None:
        self.key, self.path, self.listed = key, path, listed
        if not is_like(listed, _SHAPE):
            raise self._error("not a readable checkpoint (its list of parts is none)")
        for file, expected in listed["files"].items():
            if not (path.parent / file).is_file():
                raise self._error(f"the checkpoint is corrupt ({file} is missing)")
            if file_sum(path.parent / file) != expected:
                raise self._error(f"the checkpoint is corrupt (at {file})")
        self._opened = functools.cache(self._open)

    def __contains__(self, at: Keys) -> bool:
        return tensor_name(at) in self.listed["tensors"]

    def fill(self, checkpoint: dict[str, Any], keys: Collection[str], into: Mapping[str, Tensor] | None = None) -> None:
        """Read all tensors under these keys: those of `state_dict` to where `into` has them, if it does."""

        def read(tensor: Tensor, at: Keys) -> Tensor:
            return self.read(tensor, at, (into or {}).get(at[-1]) if at[0] == "state_dict" else None)

        checkpoint.update({key: map_tensors(checkpoint[key], read, (key,)) for key in keys if key in checkpoint})

    def read(self, tensor: Tensor, at: Keys, into: Tensor | None = None) -> Tensor:
        """Return the tensor with its content: `into`, of which a process reads its shard alone, if that has the same shape and
        dtype; else a new one, whole, on the CPU. A tensor that has its content already is returned as it is."""
        if at not in self:
            return tensor
        if into is None or (into.shape, into.dtype) != (tensor.shape, tensor.dtype):
            into = torch.empty(tensor.shape, dtype=tensor.dtype)
        name, target = tensor_name(at), into.detach()
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner({name: target}, self._metadata(name, tensor), is_coordinator=True)
        for item in planner.create_local_plan().items:
            piece = self._piece(name, list(item.storage_index.offset or ()))
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                piece = piece.narrow(dimension, start, length)
            planner.resolve_tensor(item).copy_(piece)
        return into

    def _metadata(self, name: str, tensor: Tensor) -> Metadata:
        pieces = self.listed["tensors"][name]
        chunks = [ChunkStorageMetadata(torch.Size(piece["offsets"]), torch.Size(piece["sizes"])) for piece in pieces]
        return Metadata({name: TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.shape, chunks)})

    def _piece(self, name: str, offsets: list[int]) -> Tensor:
        file = next(piece["file"] for piece in self.listed["tensors"][name] if piece["offsets"] == offsets)
        return self._opened(file)[piece_name(name, offsets)]

    def _open(self, file: str) -> dict[str, Tensor]:
        try:
            content = torch.load(self.path.parent / file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch's reader raises what it meets
            raise self._error(f"{file} does not load with weights_only=True ({type(error).__name__})") from error
        if content["save"] != self.listed["save"]:  # it was replaced since its sum was taken
            raise self._error(f"{file} is of another checkpoint")
        return content["tensors"]

    def _error(self, words: str) -> Exception:
        return config_error(self.key, self.path, words)


def file_sum(path: Path) -> str:
    """Return the file's sum, read once a process: the same number, time and size are the same file."""
    if (key := (path, read_stamp(path))) not in KNOWN_SUMS:
        with path.open("rb") as file:
            KNOWN_SUMS[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return KNOWN_SUMS[key]


def complete(key: str, path: Path, checkpoint: dict[str, Any], whole: Collection[str] | None) -> None:
    """Verify the parts of a checkpoint, and read the tensors under the keys `whole`, or all. The object that then stands under
    `tensor_files` reads the others. Called by lockstep.checkpointing.read_checkpoint."""
    checkpoint["tensor_files"] = parts = Parts(key, path, checkpoint["tensor_files"])
    parts.fill(checkpoint, [*checkpoint] if whole is None else whole)
    if whole is None:
        del checkpoint["tensor_files"]


def read_shards(path: Path, into: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a checkpoint whose weights are in `into`, and whose states of optimizers are still to be read, by `shard_at`."""
    checkpoint = read_checkpoint("checkpoint", path, whole=())
    if "tensor_files" in checkpoint:
        checkpoint["tensor_files"].fill(checkpoint, checkpoint.keys() - {"tensor_files", "optimizer_states"}, into)
    return checkpoint


def shard_at(checkpoint: Mapping[str, Any], value: Any, at: Keys, target: Tensor) -> Any:
    """Return the value at these keys of a checkpoint, sharded as `target` is if it has its shape."""
    parts: Parts | None = checkpoint.get("tensor_files")
    if parts is None or at not in parts:
        return shard_like(value, target)
    like = torch.empty_like(target.detach(), dtype=value.dtype) if value.shape == target.shape else None
    return parts.read(value, at, like)
