"""Capabilities that plug into the core.

Each folder is one. Its `__init__` imports nothing; its tests are in tests/extras/NAME.
"""
