"""Pipelines: a net's layers in stages, each on a process of its own, by GPipe or 1F1B."""
