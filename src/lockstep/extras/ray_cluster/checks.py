"""What the arguments of the callbacks accept."""

from lockstep.config.rules import TEXT, integer

RULES = {"Stopping": {"monitor": TEXT}, "Generation": {"monitor": TEXT, "until": integer(1).or_null()}}
