"""Averages of the weights over training."""

FILES = ["conf/callbacks/ema.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
