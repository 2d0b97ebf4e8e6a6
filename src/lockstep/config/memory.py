"""How much memory this machine has, and the one way to say that values of the config ask for more."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.config.arguments import shown
from lockstep.errors import ConfigError, config_error

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of this process's control group, "max" where it has none; cgroups(7)
# What torch says of a size that can't be allocated, or counted in 64 bits.
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|[Oo]verflow|std::bad_alloc")


@cache
def memory() -> int:
    """Returns the bytes that a process may have at most."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(_LIMIT.read_text()))
    except (OSError, ValueError):
        return total


def check_memory(key: str, values: Mapping[str, Any], size: int) -> None:
    """Raises ConfigError where the `values` below `key` lead to something of `size` bytes, and there is no such memory."""
    if size > memory():
        raise too_large(key, values, f"takes {_gib(size)} of memory")


def too_large(key: str, values: Mapping[str, Any], why: str) -> ConfigError:
    """Returns a refusal that names the largest of the values, which is the likely slip."""
    name = max(values, key=lambda name: _largest(values[name]))
    return config_error(f"{key}.{name}", shown(values[name]), f"{why}, and this machine has {_gib(memory())}; accepted is less")


def refused_for_memory(key: str, values: Mapping[str, Any], error: Exception) -> ConfigError | None:
    """Returns a refusal if the error says that there was too little memory for the values; None for another error."""
    is_meant = isinstance(error, MemoryError | OverflowError)
    is_meant = is_meant or (isinstance(error, RuntimeError | TypeError) and _NO_MEMORY.search(str(error)) is not None)
    if not is_meant or not any(map(_largest, values.values())):
        return None
    return too_large(key, values, "takes more memory than could be had")


def _largest(value: Any) -> int:
    """Returns the largest integer in a value."""
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


def _gib(size: int) -> str:
    return f"{min(size, 2**100) / 2**30:.3g} GiB"
