"""Lightning callbacks, each switched on by one file in conf/callbacks."""

from lockstep.callbacks.checkpoints import LastCheckpoint
from lockstep.callbacks.monitors import LearningRate, Throughput
from lockstep.callbacks.pictures import Pictures
from lockstep.callbacks.progress import Progress
from lockstep.callbacks.randomness import CountedRandomness

__all__ = ["CountedRandomness", "LastCheckpoint", "LearningRate", "Pictures", "Progress", "Throughput"]
