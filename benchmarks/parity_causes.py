"""The causes that scripts/parity.py names, for benchmarks/lightning_code.py."""

import re
from collections.abc import Callable
from typing import Any

from lockstep.extras.parity.verdict import parity


def causes(compose: Callable[..., Any]) -> list[str]:
    said: list[str] = []
    parity(compose, said.append)
    return re.findall(r"^Why: (.*?)\. With", "\n".join(said), re.MULTILINE)
