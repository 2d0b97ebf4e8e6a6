"""What the arguments of the callbacks accept."""

from lockstep.config.rules import YES_NO, integer

WINDOW = {"first_step": integer(1), "steps": integer(1)}

RULES = {
    "StepTime": {"every_n_steps": integer(1)},
    "TF32": {"matrices": YES_NO, "convolutions": YES_NO},
    "TorchProfiler": WINDOW,
    "Nsight": WINDOW,
}
