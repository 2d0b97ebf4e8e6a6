"""Hydra's override grammar, as far as command lines are made from command lines."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from lockstep.errors import config_error
from lockstep.places import CONF, project

# Of Hydra's own settings those that say where and how this one command runs, not what a run is.
_OF_SWEEPS = ("hydra.sweep", "hydra.launcher", "hydra/launcher", "hydra/sweeper")

_MAY_BE_NULL = ("logger", "callbacks")  # groups of which none is a choice too
_NO_DATA = "datamodule=none"  # an option, so that a run's name has a word for it


def quote(value: str) -> str:
    """Returns a value as Hydra's override grammar reads it back unchanged."""
    return QuotedString(value, Quote.single).with_quotes()


def quote_equals(override: str) -> str:
    """Return KEY=VALUE with a value that has an `=`, such as the path of a sweep's job, quoted for Hydra."""
    key, _, value = override.partition("=")
    is_plain = re.fullmatch(r"[\w.]+=[^'\",\[\]{}()]*=[^'\",\[\]{}()]*", override) and not Path(override).exists()
    return f"{key}={quote(value)}" if is_plain else override


def check_single(overrides: Sequence[str], params: Iterable[str] = ()) -> None:
    """Raises ConfigError for an override of a sweep or of its jobs, which a single run would ignore. A command line that gives
    each of the sweep's `params` one value is that of a job: its sweep=NAME belongs to it."""
    given, swept = {override_key(item) for item in overrides}, {override_key(name) for name in params}
    for key, value in ((override_key(item), item.partition("=")[2]) for item in overrides):
        is_of_sweep = key == "sweep" and value != "null" and not (swept and swept <= given)
        if key.startswith(_OF_SWEEPS) or is_of_sweep:
            raise config_error(key, value, "is for sweeps; use -m")


def is_group(key: str) -> bool:
    """Return whether an override's key is that of a group of configs, Lockstep's or the project's."""
    return any((folder / key.partition("@")[0]).is_dir() for folder in (CONF, project() / "conf"))


def chooses_group(override: str) -> bool:
    """Return whether an override chooses a group's option; KEY={NAME: VALUE} gives values in it."""
    return is_group(override_key(override)) and not override.partition("=")[2].startswith("{")


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags of a command line, with their values, and its overrides."""
    overrides = [item for item in arguments if item.startswith("~") or ("=" in item and not item.startswith("-"))]
    return [item for item in arguments if item not in overrides], overrides


def constants(overrides: Sequence[str]) -> set[str]:
    """Returns the overrides that are not swept over, spelled as Hydra's sweeper passes them to each job."""
    parsed = [override for override in OverridesParser.create().parse_overrides([*overrides]) if not override.is_sweep_override()]
    return {f"{override.get_key_element()}={override.get_value_element_as_str()}" for override in parsed}


def override_key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def values_by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the value of each key that is overridden, as text: quoted text less its quotes."""
    given = (item.partition("=") for item in overrides if "=" in item)
    return {override_key(key): _text(value) for key, _, value in given}


def _text(value: str) -> str:
    with contextlib.suppress(HydraException):  # of a path that is not quoted, say
        parsed = OverridesParser.create().parse_override(f"key={value}").value()
        return parsed if isinstance(parsed, str) else value
    return value


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns what each dotted key of a config in plain containers is set to."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return values


def nodes(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each dotted key of a config in plain containers with its value; a group or a list comes before what is in it."""
    for name, value in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield f"{above}{name}", value
        if isinstance(value, Mapping | list | tuple):
            yield from nodes(value, f"{above}{name}.")


def null_groups_left_out(arguments: Sequence[str]) -> list[str]:
    """Replaces `logger=null` by what Hydra accepts, `~logger`: no logger, whatever was chosen before."""
    last = {override_key(item): item for item in arguments if override_key(item) in _MAY_BE_NULL}
    left_out = sorted(key for key, item in last.items() if item == f"{key}=null")
    nulls = [f"{key}=null" for key in _MAY_BE_NULL]
    rest = [item for item in arguments if override_key(item) not in left_out and item not in nulls]
    rest = [_NO_DATA if item in ("datamodule=null", "~datamodule") else item for item in rest]
    return rest + [f"~{key}" for key in left_out]
