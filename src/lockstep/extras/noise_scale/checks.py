"""What the arguments of the callback accept."""

from lockstep.config.rules import integer, number

RULES = {"NoiseScale": {"every_n_steps": integer(1), "every_n_steps_alone": integer(1), "decay": number(0, 0.9999)}}
