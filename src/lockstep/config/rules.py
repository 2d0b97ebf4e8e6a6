"""Rules for settings of a sweep's launcher or sweeper: a test, and the words for what passes it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A test of one value, and the words for what passes it."""

    words: str
    test: Callable[[Any], bool]

    def or_null(self) -> "Rule":
        return Rule(f"{self.words}, or null", lambda value: value is None or self.test(value))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float)


def integer(least: int, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least}" if most == float("inf") else f"between {least} and {most}"
    return Rule(f"use an integer {bounds}", lambda v: _is_int(v) and least <= v <= most)


def number(least: float, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
    return Rule(f"use a number {bounds}", lambda v: _is_number(v) and math.isfinite(v) and least <= v <= most)


def above(least: float) -> Rule:
    return Rule(f"use a number above {least:g}", lambda v: _is_number(v) and math.isfinite(v) and v > least)


def one_of(*options: object) -> Rule:
    shown = (str(option).lower() if isinstance(option, bool) else str(option) for option in options)
    words = "use " + ", ".join(dict.fromkeys(shown))
    return Rule(words, lambda v: any(v == option and isinstance(v, type(option)) for option in options))


TEXT = Rule("use text", lambda v: isinstance(v, str) and v != "")
SEED = integer(0, 2**32 - 1)  # numpy's bounds
