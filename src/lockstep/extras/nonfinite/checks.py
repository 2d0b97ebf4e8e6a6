"""What the arguments of the guard accept."""

from lockstep.config.rules import integer, one_of

RULES = {"NonFinite": {"action": one_of("stop", "skip"), "every_n_steps": integer(1)}}
