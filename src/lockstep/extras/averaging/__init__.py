"""Averages of the weights over training."""

FILES = ["conf/callbacks/ema.yaml"]
