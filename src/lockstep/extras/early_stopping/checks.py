"""What the arguments of EarlyStopping accept."""

from lockstep.config.rules import MODE, integer, number

RULES = {"EarlyStopping": {"mode": MODE, "patience": integer(0), "min_delta": number(0)}}
