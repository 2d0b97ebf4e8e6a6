"""A guard that ends a run, or leaves a step out, whose loss is NaN or infinite."""

FILES = ["conf/guards/parts/nonfinite.yaml"]
FORMER_NAMES = {"lockstep.callbacks.NonFinite": "lockstep.extras.nonfinite.nonfinite.NonFinite"}
