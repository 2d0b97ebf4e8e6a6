"""Capabilities that plug into the core.

Each folder is one. Its `__init__` imports nothing; its tests are in tests/extras/NAME. FORMER_NAMES says where the checkpoints
and configs of earlier runs have classes that are in it now.
"""
