"""What is known when a cause is looked for. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.parity.compare import compare
from lockstep.parity.comparison import Comparison
from lockstep.parity.processes import Processes, SideFailed
from lockstep.parity.sides import Sides


@dataclass(frozen=True)
class Evidence:
    """The sides, what comparing them gave, or how a side failed."""

    sides: Sides
    comparison: Comparison | None
    failure: SideFailed | None

    def differs(self, *quantities: str) -> bool:
        return self.comparison is not None and self.comparison.differs(*quantities)

    def fact(self, name: str) -> Any:
        return self.comparison.facts.get(name) if self.comparison is not None else None

    @property
    def rounding_alone(self) -> set[str]:
        return self.comparison.rounding_alone if self.comparison is not None else set()

    def configured(self, key: str) -> Any:
        return OmegaConf.select(self.sides.other, key)

    def says(self, words: str) -> bool:
        return self.failure is not None and any(words in text for text in self.failure.tracebacks)

    @property
    def plan(self) -> Plan:
        """Of the side that is to equal the reference."""
        return Plan.of(self.sides.other)

    @property
    def reference(self) -> Plan:
        return Plan.of(self.sides.reference)


def examine(sides: Sides, processes: Processes) -> Evidence:
    """Compares, or learns how a side fails."""
    try:
        return Evidence(sides, compare(sides, processes), None)
    except SideFailed as failure:
        return Evidence(sides, None, failure)
