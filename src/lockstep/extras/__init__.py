"""Capabilities that plug into the core.

Each file or folder is one. The `__init__` of a folder imports nothing; tests are in tests/extras/NAME.
"""
