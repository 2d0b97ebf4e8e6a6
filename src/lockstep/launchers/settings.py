"""conf/launchers.yaml: who starts processes beside this program itself; and other files of that kind."""

import functools
from typing import Any

import yaml

from lockstep.places import config_file


@functools.cache
def read_settings(name: str = "launchers.yaml") -> dict[str, Any]:
    """Returns its content. It is read once: a working directory may go; and by YAML alone, which imports in a moment."""
    return yaml.safe_load(config_file(name).read_bytes()) or {}
