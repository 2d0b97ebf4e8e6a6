"""A guard that ends a run, or leaves a step out, whose loss is NaN or infinite."""

FILES = ["conf/guards/parts/nonfinite.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
FORMER_NAMES = {"lockstep.callbacks.NonFinite": "lockstep.extras.nonfinite.nonfinite.NonFinite"}
