"""conf/launchers.yaml: who starts processes beside this program itself."""

import functools
from typing import Any

from omegaconf import OmegaConf

from lockstep.places import config_file


@functools.cache
def read_settings() -> dict[str, Any]:
    """Returns its content. It is read once: a working directory may go."""
    content: Any = OmegaConf.to_container(OmegaConf.load(config_file("launchers.yaml")))
    return content
