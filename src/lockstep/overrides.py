"""Hydra's override grammar, as far as command lines are made from command lines."""

import re
from collections.abc import Sequence
from typing import Any

# Of Hydra's own settings those that say where and how this one command runs, not what a run is.
_OF_ONE_COMMAND = ("hydra.run.", "hydra.sweep", "hydra.mode", "hydra.launcher", "hydra/launcher", "hydra/sweeper")


def quote(value: str) -> str:
    """A value as Hydra's override grammar reads it back unchanged."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value)
    return f"'{escaped}'"  # a backslash is an escape only before a quote


def of_each_run(hydra: Any) -> list[str]:
    """Those of the overrides of Hydra's own config, `hydra.overrides.hydra`, that are meant for each run too."""
    return [override for override in hydra.overrides.hydra if not override.lstrip("+~").startswith(_OF_ONE_COMMAND)]


def config_flags(hydra: Any) -> list[str]:
    """The flags that name the config which a process of this program was composed from."""
    flags = ["--config-name", str(hydra.job.config_name)]
    for source in hydra.runtime.config_sources:
        if source.provider == "main":
            flags += ["--config-path", source.path]
        elif source.provider == "command-line":
            flags += ["--config-dir", source.path]
    return flags


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's (flags with their values, overrides)."""
    overrides = [item for item in arguments if item.startswith("~") or ("=" in item and not item.startswith("-"))]
    return [item for item in arguments if item not in overrides], overrides


def last_of_each(overrides: Sequence[str]) -> list[str]:
    """Of several overrides of one key the last, in the place of the first."""
    return list({item.partition("=")[0].lstrip("+~"): item for item in overrides}.values())
