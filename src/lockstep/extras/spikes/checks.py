"""What the arguments of the guard accept."""

from lockstep.config.rules import above, integer

RULES = {"Spikes": {"sigmas": above(0), "window": integer(4), "limit": integer(1)}}
