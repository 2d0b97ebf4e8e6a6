"""What the arguments of the profilers accept."""

from lockstep.config.rules import integer

WINDOW = {"first_step": integer(1), "steps": integer(1)}
RULES = {"TorchProfiler": WINDOW, "Nsight": WINDOW}
