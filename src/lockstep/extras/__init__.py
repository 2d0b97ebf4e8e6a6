"""Capabilities that plug into the core.

Each folder is one. Its `__init__` imports nothing and says what belongs to it beside its code and its tests, which are in
tests/extras/NAME, where there is such a thing: FILES, its page, configs and scripts; NEEDS, the extras without which it does
not work; and OPTIONAL_DEPENDENCIES, its groups in pyproject.toml. `python scripts/remove.py NAME` takes all of that out.
FORMER_NAMES says where the checkpoints and configs of earlier runs have classes that are in it now.
"""
