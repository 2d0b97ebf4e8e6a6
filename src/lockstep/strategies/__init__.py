"""Strategies: how the processes of a run work together. conf/trainer composes them."""
