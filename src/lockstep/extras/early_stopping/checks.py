"""What the arguments of EarlyStopping accept."""

from lockstep.config.rules import MODE, TEXT, integer, number

RULES = {"EarlyStopping": {"monitor": TEXT, "mode": MODE, "patience": integer(0), "min_delta": number(0)}}
