"""Hydra's override grammar, as far as command lines are made from command lines."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from lockstep.places import CONF, project


def quote(value: str) -> str:
    """Return a value as Hydra's override grammar reads it back unchanged."""
    return QuotedString(value, Quote.single).with_quotes()


def is_group(key: str) -> bool:
    """Return whether an override's key is that of a group of configs, Lockstep's or the project's."""
    return any((folder / key.partition("@")[0]).is_dir() for folder in (CONF, project() / "conf"))


def chooses_group(override: str) -> bool:
    """Return whether an override chooses a group's option; KEY={NAME: VALUE} gives values in it."""
    return is_group(override_key(override)) and not override.partition("=")[2].startswith("{")


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags of a command line, with their values, and its overrides."""
    overrides = [item for item in arguments if item.startswith("~") or ("=" in item and not item.startswith("-"))]
    return [item for item in arguments if item not in overrides], overrides


def constants(overrides: Sequence[str]) -> set[str]:
    """Return the overrides that are not swept over, spelled as Hydra's sweeper passes them to each job."""
    parsed = [override for override in OverridesParser.create().parse_overrides([*overrides]) if not override.is_sweep_override()]
    return {f"{override.get_key_element()}={override.get_value_element_as_str()}" for override in parsed}


def override_key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def values_by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Return the value of each key that is overridden, as text: quoted text less its quotes."""
    values = {}
    for key, _, value in (item.partition("=") for item in overrides if "=" in item):
        values[override_key(key)] = value
        with contextlib.suppress(HydraException):  # of a path that is not quoted, say
            parsed = OverridesParser.create().parse_override(f"key={value}").value()
            values[override_key(key)] = parsed if isinstance(parsed, str) else value
    return values


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the value of each dotted key of a config in plain containers."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return values


def nodes(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of a config in plain containers with its value; a group or a list comes before what is in it."""
    for name, value in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield f"{above}{name}", value
        if isinstance(value, Mapping | list | tuple):
            yield from nodes(value, f"{above}{name}.")
