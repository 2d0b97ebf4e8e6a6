"""Torch's one-cycle schedule, fitted to how long training lasts."""
