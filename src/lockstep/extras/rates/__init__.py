"""The learning rate of each step and the throughput, logged."""
