"""What the arguments of the data accept."""

from lockstep.config.rules import YES_NO, integer

RULES = {"ImageFolder": {"size": integer(1), "verify": YES_NO}}
