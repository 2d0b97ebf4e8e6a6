"""What the argument of Progress accepts."""

from lockstep.config.rules import integer

RULES = {"Progress": {"refresh_rate": integer(0)}}
