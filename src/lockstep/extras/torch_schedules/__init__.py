"""Torch's own one-cycle schedule, fitted to how long training lasts."""
