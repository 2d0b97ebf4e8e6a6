"""What the argument of the net accepts."""

from lockstep.config.rules import integer

RULES = {"resnet": {"depth": integer(1, 1000)}}
