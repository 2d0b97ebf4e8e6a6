"""Finished runs opened again: tested at any number of devices, their weights exported to be read without this package.

saved.py        a run's config with changes, and its checkpoints
predictions.py  what a module's predict_step says of each sample
"""
