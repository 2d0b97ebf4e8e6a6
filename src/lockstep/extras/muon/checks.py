"""What the arguments of the optimizer accept."""

from lockstep.config.rules import YES_NO, integer

RULES = {"Muon": {"ns_steps": integer(1), **dict.fromkeys(("nesterov", "normalize", "bfloat16"), YES_NO)}}
