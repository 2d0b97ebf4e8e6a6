"""The learning rate of each step and the throughput, logged."""

FILES = ["conf/callbacks/rates.yaml"]
NEEDS = ["any_batch", "monitors"]
