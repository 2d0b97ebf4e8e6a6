"""What the arguments of what writes checkpoints accept."""

from lockstep.config.rules import YES_NO, one_of

RULES = {"AtomicCheckpointIO": {"on_save_error": one_of("fail", "warn"), "async": YES_NO}}
