"""Checkpoints that cannot tear: how they are written, verified and read."""

from lockstep.checkpointing.files import latest_valid_checkpoint, read_checkpoint, write_checkpoint
from lockstep.checkpointing.io import AtomicCheckpointIO, CheckpointError
