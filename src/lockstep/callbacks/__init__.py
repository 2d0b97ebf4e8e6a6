"""Lightning callbacks, each switched on by one file in conf/callbacks."""

from lockstep.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lockstep.callbacks.post_mortem import PostMortem
from lockstep.callbacks.preemption import Preemption
from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.callbacks.stepped_rate import SteppedRate
from lockstep.callbacks.watchdog import Watchdog
