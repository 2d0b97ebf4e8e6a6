"""A composed config on its way to a process that this one starts, which would compose the same for half a second.

It goes through the environment, beside the command whose config it is; a process that runs another command composes its own.
"""

import base64
import os
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from lockstep.launchers.environment import HANDED_CONFIG


def hand_over(composed: bytes, command: Sequence[str], directory: Path, hydra_overrides: Sequence[str]) -> dict[str, str]:
    """The variable for a process that runs `command` in `directory`. `composed`: the config, pickled as Hydra has made it; empty
    where none was made from a command line."""
    if not composed:
        return {}
    config = pickle.loads(composed)
    with read_write(config.hydra):
        config.hydra.mode = RunMode.RUN
        config.hydra.run.dir = str(directory)
        config.hydra.overrides.hydra = list(hydra_overrides)
    return {HANDED_CONFIG: base64.b85encode(zlib.compress(pickle.dumps((list(command[1:]), config)))).decode()}


def take_handed(arguments: Sequence[str]) -> DictConfig | None:
    """What was handed to this process; None where that is nothing, or what another command than `python ARGUMENTS` composes."""
    content = os.environ.pop(HANDED_CONFIG, None)
    if content is None:
        return None
    its_arguments, config = pickle.loads(zlib.decompress(base64.b85decode(content)))
    if its_arguments != list(arguments):
        return None
    OmegaConf.clear_cache(config)  # of resolvers, whose values are this process's
    return config
