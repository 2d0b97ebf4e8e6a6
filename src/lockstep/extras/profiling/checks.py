"""What the arguments of the callbacks accept."""

from lockstep.config.rules import integer

WINDOW = {"first_step": integer(1), "steps": integer(1)}

RULES = {"StepTime": {"every_n_steps": integer(1)}, "TorchProfiler": WINDOW, "Nsight": WINDOW}
