"""Tests of one capability that use another, which a project may have taken out."""

from importlib.util import find_spec

import pytest


def requires(*names: str) -> pytest.MarkDecorator:
    """Skips a test where one of these extras is not there."""
    missing = [name for name in names if not is_there(name)]
    return pytest.mark.skipif(bool(missing), reason=f"takes {', '.join(missing)}, which is not there")


def is_there(name: str) -> bool:
    return find_spec(f"lockstep.extras.{name}") is not None
