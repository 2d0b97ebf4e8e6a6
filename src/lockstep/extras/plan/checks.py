"""What the arguments of the callback accept."""

from lockstep.config.rules import TEXT, integer, some

RULES = {"LossAtSamples": {"at": some("numbers of samples", integer(1)), "monitor": TEXT}}
