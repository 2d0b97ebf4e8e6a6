"""conf/launchers.yaml: who starts processes beside this program itself."""

import functools
from typing import Any

import yaml

from lockstep.places import config_file


@functools.cache
def read_settings() -> dict[str, Any]:
    """Returns its content. It is read once: a working directory may go; and by YAML alone, which imports in a moment."""
    return yaml.safe_load(config_file("launchers.yaml").read_bytes())
