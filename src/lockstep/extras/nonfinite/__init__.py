"""A guard that ends a run, or leaves a step out, whose loss is NaN or infinite."""

FORMER_NAMES = {"lockstep.callbacks.NonFinite": "lockstep.extras.nonfinite.nonfinite.NonFinite"}
