"""Finished runs opened again: tested, or asked for predictions, at any number of devices."""
