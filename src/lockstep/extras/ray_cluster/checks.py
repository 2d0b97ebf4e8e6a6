"""What the argument of the callback accepts."""

from lockstep.config.rules import TEXT

RULES = {"Stopping": {"monitor": TEXT}}
