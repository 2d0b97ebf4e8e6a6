"""Profilers of a few steps."""
