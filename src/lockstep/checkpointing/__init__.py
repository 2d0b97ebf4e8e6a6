"""Checkpoints that cannot tear: how they are written, verified, and found again."""

from lockstep.checkpointing.compare import differences
from lockstep.checkpointing.files import newest_sound, read_checkpoint, write_checkpoint
from lockstep.checkpointing.io import AtomicCheckpointIO, CheckpointError

__all__ = ["AtomicCheckpointIO", "CheckpointError", "differences", "newest_sound", "read_checkpoint", "write_checkpoint"]
