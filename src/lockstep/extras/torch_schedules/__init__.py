"""Torch's own one-cycle and plateau schedules, fitted to how long training lasts and to the metric that a run is compared by."""
