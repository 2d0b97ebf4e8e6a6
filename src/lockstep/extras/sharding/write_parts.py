"""Writing of a checkpoint in parts, as torch.distributed.checkpoint plans who writes which shard; removal of unused parts."""

import dataclasses
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, StorageWriter, save
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from lockstep.atomic_files import read_stamp, sync_folder
from lockstep.checkpointing import chain_of, write_checkpoint
from lockstep.extras.sharding.parts import KNOWN_SUMS, file_sum, piece_name

_FOLDER = "parts"


def write_parts(
    content: dict[str, dict[str, Any]], parts: dict[str, Tensor], path: Path, keep_as: str | None, group: dist.ProcessGroup | None
) -> None:
    """Write what this process holds to a file of its own beside `path`, synced and verified; when all processes of the group have
    done so, the first of them replaces `path`, as write_checkpoint does. A collective.

    Raises on every process the error of one of them: OSError, RuntimeError or ConfigError, as write_checkpoint does.

    Args:
        content: `pieces`, what this process holds of tensors, by their names; `rest`, the checkpoint without their numbers.
        parts: those tensors, which say what pieces of which shape they have; their numbers are not read.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False)
    try:
        save(parts, storage_writer=_Writer(path, keep_as, **content), planner=planner, process_group=group)
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


class _Writer(StorageWriter):
    """Write one file of plain tensors for each process, and a checkpoint that lists them."""

    def __init__(self, path: Path, keep_as: str | None, rest: dict[str, Any], pieces: dict[str, Tensor]) -> None:
        self.path, self.folder, self.keep_as, self.rest, self.pieces, self.save = path, path.parent, keep_as, rest, pieces, ""

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
        """Choose a folder that no checkpoint names. These have numbers, so that there are few, in a copy of the run too."""
        self.save, used = uuid.uuid4().hex, _used(self.folder)
        numbers = (f"{_FOLDER}/{number}" for number in itertools.count())
        free = next(name for name in numbers if name not in used)
        shutil.rmtree(self.folder / free, ignore_errors=True)
        (self.folder / free).mkdir(parents=True)
        return [dataclasses.replace(plan, storage_data=(self.save, f"{free}/{i}.ckpt")) for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        number, file = plan.storage_data
        pieces: dict[str, Tensor] = {}
        for item in plan.items:
            piece = self.pieces[item.index.fqn].detach().cpu().contiguous()
            assert item.tensor_data is not None
            assert piece.shape == item.tensor_data.chunk.sizes
            is_view = piece.untyped_storage().nbytes() > piece.nbytes  # it would be saved with all of its storage
            pieces[piece_name(item.index.fqn, item.index.offset or ())] = piece.clone() if is_view else piece
        path, written = self.folder / file, Future[list[WriteResult]]()
        with _as_the_system_says():
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
        listed = {"save": self.save, "files": files, "tensors": tensors}
        with _as_the_system_says():
            write_checkpoint(self.rest | {"tensor_files": listed}, self.path, self.keep_as)
        remove_unused_parts(self.folder)


def remove_unused_parts(folder: Path) -> None:
    """Remove the parts that no checkpoint in a folder names, or may name."""
    used = _used(folder)
    for path in (folder / _FOLDER).glob("*"):
        if f"{_FOLDER}/{path.name}" not in used:
            shutil.rmtree(path, ignore_errors=True)


def _used(folder: Path) -> set[str]:
    """Return the folders of parts that checkpoints name, those that were put aside too: a checkpoint that can't be read may name
    all folders that are older than itself."""
    used: set[str] = set()
    for path in sorted(folder.glob("[!.]*.ckpt*")):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            used |= {os.path.dirname(file) for file in content.get("tensor_files", {"files": ()})["files"]}  # noqa: PTH120
        except Exception:  # torch's reader raises what it meets
            used |= _older(folder, path)
    return used


def _older(folder: Path, path: Path) -> set[str]:
    """Return the folders of parts that are older than a file's name; none of them is of a later save."""
    named = path.stat().st_ctime_ns
    return {f"{_FOLDER}/{part.name}" for part in (folder / _FOLDER).glob("*") if part.stat().st_mtime_ns <= named}


@contextmanager
def _as_the_system_says() -> Iterator[None]:
    """Raise the OSError that an error of torch's comes from in its place: another process is sent an error alone."""
    try:
        yield
    except RuntimeError as error:
        raise next((one for one in chain_of(error) if isinstance(one, OSError)), error) from None
