"""Lightning callbacks, each switched on by one file in conf/callbacks."""

from lockstep.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lockstep.callbacks.every_run import SteppedRate
from lockstep.callbacks.guards import Preemption, Watchdog
from lockstep.callbacks.randomness import CounterBasedRandomness
