"""Writing a checkpoint in parts: who writes which shard, as torch.distributed.checkpoint plans it, where, and what may go."""

import dataclasses
import itertools
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, StorageWriter, save
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from lockstep.atomic_files import read_stamp, sync_folder
from lockstep.checkpointing import write_checkpoint
from lockstep.extras.sharding.parts import KNOWN_SUMS, Keys, file_sum, piece_name, tensor_name
from lockstep.extras.sharding.shards import map_tensors

_FOLDER = "parts"


def write_parts(checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Writes the shards that this process holds to its own file in the folder, synced and verified. Returns what is to be
    written there last, on rank zero: the checkpoint without their content, and where that is. A collective.

    Raises on every process what one of them has met: OSError, RuntimeError or ConfigError, as write_checkpoint does.
    """
    shards: dict[str, Any] = {}

    def take(tensor: Tensor, at: Keys) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        shards[tensor_name(at)] = tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    rest, writer = map_tensors(checkpoint, take), _Writer(folder)
    try:
        save(shards, storage_writer=writer, planner=DefaultSavePlanner(flatten_state_dict=False))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
    return rest | {"tensor_files": writer.listed}


class _Writer(StorageWriter):
    """One file of plain tensors for each process. `listed`, on rank zero: what stands under `tensor_files` in the checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.save, self.listed = folder, "", dict[str, Any]()

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Chooses a folder that no checkpoint names. These have numbers, so that there are few, in a copy of the run too."""
        self.save, used = uuid.uuid4().hex, _used(self.folder)
        numbers = (f"{_FOLDER}/{number}" for number in itertools.count())
        free = next(name for name in numbers if (not (self.folder / name).exists() if used is None else name not in used))
        shutil.rmtree(self.folder / free, ignore_errors=True)
        (self.folder / free).mkdir(parents=True)
        return [dataclasses.replace(plan, storage_data=(self.save, f"{free}/{i}.ckpt")) for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        number, file = plan.storage_data
        pieces: dict[str, Tensor] = {}
        for item in plan.items:
            piece: Any = planner.resolve_data(item)
            assert item.tensor_data is not None
            assert piece.shape == item.tensor_data.chunk.sizes
            name = piece_name(item.index.fqn, item.index.offset or ())
            pieces[name] = piece.detach().to("cpu", copy=True).contiguous()  # a view would be saved with all of its storage
        path, written = self.folder / file, Future[list[WriteResult]]()
        write_checkpoint({"save": number, "tensors": pieces}, path)
        size, about = path.stat().st_size, (file, file_sum(path))
        written.set_result([WriteResult(item.index, size, about) for item in plan.items])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        sync_folder(self.folder / _FOLDER)
        sync_folder(self.folder)
        where = {(one.index.fqn, one.index.offset): one.storage_data for own in results for one in own}
        tensors = {
            name: [
                {"offsets": [*chunk.offsets], "sizes": [*chunk.sizes], "file": where[name, chunk.offsets][0]}
                for chunk in tensor.chunks  # pyright: ignore[reportAttributeAccessIssue]
            ]
            for name, tensor in metadata.state_dict_metadata.items()
        }
        files = dict(where.values())
        KNOWN_SUMS.update({(self.folder / file, read_stamp(self.folder / file)): known for file, known in files.items()})
        self.listed = {"save": self.save, "files": files, "tensors": tensors}


def remove_unused_parts(folder: Path) -> None:
    """Removes the parts that no checkpoint in a folder names; nothing while one of these can't be read."""
    if (used := _used(folder)) is not None:
        for path in (folder / _FOLDER).glob("*"):
            if f"{_FOLDER}/{path.name}" not in used:
                shutil.rmtree(path, ignore_errors=True)


def _used(folder: Path) -> set[str] | None:
    """The folders of parts that checkpoints name, those that were put aside too. None where one of these can't be read."""
    try:
        contents = [
            torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in sorted(folder.glob("[!.]*.ckpt*"))
        ]
        return {os.path.dirname(file) for content in contents for file in content.get("tensor_files", {"files": ()})["files"]}  # noqa: PTH120
    except Exception:  # torch's reader raises what it meets
        return None
