"""What a value of the config may be: a test, and the words for what passes it. What each argument of a class accepts stands
beside the class, in a module `checks.py`; what the root keys accept stands here."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf


@dataclass(frozen=True)
class Rule:
    """A test of one value, and the words for what passes it."""

    words: str
    test: Callable[[Any], bool]

    def or_null(self) -> "Rule":
        return Rule(f"{self.words}, or null", lambda value: value is None or self.test(value))

    def or_auto(self) -> "Rule":
        return Rule(f"{self.words}, or auto", lambda value: value == "auto" or self.test(value))


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return is_int(value) or isinstance(value, float)


def integer(least: int, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least}" if most == float("inf") else f"between {least} and {most}"
    return Rule(f"accepted is an integer {bounds}", lambda v: is_int(v) and least <= v <= most)


def number(least: float, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
    return Rule(f"accepted is a number {bounds}", lambda v: _is_number(v) and math.isfinite(v) and least <= v <= most)


def above(least: float) -> Rule:
    return Rule(f"accepted is a number above {least:g}", lambda v: _is_number(v) and math.isfinite(v) and v > least)


def groups(words: str, needed: str) -> Rule:
    """Named groups, each of which has the key that is needed."""
    return Rule(
        words, lambda v: v is None or (OmegaConf.is_dict(v) and all(OmegaConf.is_dict(g) and needed in g for g in v.values()))
    )


def some(what: str, one: Rule, count: int | None = None) -> Rule:
    """A list of what passes a rule."""
    return Rule(
        f"accepted is a list of {what}",
        lambda v: OmegaConf.is_list(v) and len(v) == (len(v) if count is None else count) and all(map(one.test, v)),
    )


def one_of(*options: object) -> Rule:
    shown = (str(option).lower() if isinstance(option, bool) else str(option) for option in options)
    words = "accepted is " + ", ".join(dict.fromkeys(shown))
    return Rule(words, lambda v: any(v == option and isinstance(v, type(option)) for option in options))


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


YES_NO = one_of(True, False)
TEXT = Rule("accepted is text", lambda v: isinstance(v, str) and v != "")
MODE = one_of("max", "min")
PATTERN = Rule("accepted is a regular expression", _is_pattern)
SEED = integer(0, 2**32 - 1)  # numpy's bounds
SWITCHES = ("overwrite", "fresh_processes")
# Root keys.
ROOT: dict[str, Rule] = {
    **dict.fromkeys(SWITCHES, YES_NO),
    "test": YES_NO.or_auto(),
    **dict.fromkeys(("max_processes_per_core", "base_batch_size"), integer(1)),
    **dict.fromkeys(("resume", "init_from"), TEXT.or_null()),
    "name": Rule("accepted is text, of which no part is ..", lambda v: TEXT.test(v) and ".." not in v.split("/")),
    "seed": SEED,
    "max_restarts": integer(0),
    "init_without": PATTERN.or_null(),
    "optimized_metric": TEXT.or_null(),
    "optimized_mode": MODE,
    "lr_scaling": one_of("none", "linear", "sqrt", "adam"),
}
