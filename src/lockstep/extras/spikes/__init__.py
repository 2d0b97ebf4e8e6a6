"""A guard that leaves out steps whose loss is far above those before it."""

FILES = ["conf/guards/spikes.yaml"]
NEEDS = ["nonfinite"]
