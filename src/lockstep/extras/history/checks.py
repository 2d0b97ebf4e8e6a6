"""What the arguments of the callback that keeps a run's code accept."""

from lockstep.config.rules import integer

RULES = {"KeepCode": {"max_kib": integer(0)}}
