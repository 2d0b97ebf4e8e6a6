"""What the arguments of the callback accept."""

from lockstep.config.rules import integer

RULES = {"Pictures": {"samples": integer(1)}}
