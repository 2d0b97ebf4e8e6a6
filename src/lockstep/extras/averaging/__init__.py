"""Averages of the weights over training."""
