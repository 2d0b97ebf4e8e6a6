"""Why two sides differ: causes are suspected by a symptom, and named only if switching them off helps. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import ConfigError
from lockstep.parity.causes import CAUSES, KERNELS, Cause
from lockstep.parity.compare import TooFewSteps, compare, repeats
from lockstep.parity.evidence import Evidence, examine
from lockstep.parity.processes import Processes, SideFailed
from lockstep.parity.sides import CONSTANT, Sides


@dataclass(frozen=True)
class Explanation:
    """Causes, confirmed, and what is still found with all of them switched off: None where both sides are then equal."""

    causes: list[Cause]
    rest: Evidence | None


def explained(evidence: Evidence, processes: Processes) -> list[Explanation]:
    """What is found first, then what is found behind it, and so on; nothing where no cause is confirmed."""
    found: list[Explanation] = []
    current: Evidence | None = evidence
    while current is not None:
        named = [cause for explanation in found for cause in explanation.causes]
        causes = _causes_of(current, [cause for cause in CAUSES if cause not in named], processes)
        if not causes:
            break
        current = _rest(current, causes, processes)
        found.append(Explanation(causes, current))
    return found


def _rest(evidence: Evidence, causes: Sequence[Cause], processes: Processes) -> Evidence | None:
    """Over all steps: causes are confirmed up to the first step that differs."""
    steps = evidence.sides.steps
    if evidence.comparison is not None and evidence.comparison.steps_needed == steps:
        return None
    processes.doing = "what is behind it"
    rest = examine(_without(causes, evidence, steps), processes)
    return None if rest.comparison is not None and rest.comparison.equal else rest


def _causes_of(evidence: Evidence, possible: Sequence[Cause], processes: Processes) -> list[Cause]:
    """With it, or with all of them, switched off the sides are equal; with one of them on they are not."""
    suspects = [cause for cause in possible if cause.is_suspected(evidence)]
    confirmed = _confirmed(suspects, evidence, processes)
    if not confirmed and evidence.comparison is not None and not repeats(_shortened(evidence, []), processes):
        confirmed = _confirmed([KERNELS], evidence, processes) or _confirmed([*suspects, KERNELS], evidence, processes)
    return confirmed


def _confirmed(suspects: Sequence[Cause], evidence: Evidence, processes: Processes) -> list[Cause]:
    for suspect in suspects:
        if _equal_without([suspect], evidence, processes):
            return [suspect]
    needed = [suspect for suspect in suspects if suspect.composes]
    if len(needed) < 2 or not _equal_without(needed, evidence, processes):
        return []
    for suspect in reversed(needed):  # the more particular ones come first
        fewer = [cause for cause in needed if cause is not suspect]
        needed = fewer if len(fewer) > 1 and _equal_without(fewer, evidence, processes) else needed
    return needed


def _equal_without(causes: Sequence[Cause], evidence: Evidence, processes: Processes) -> bool:
    processes.doing = f"without {' and '.join(cause.name for cause in causes)}"
    try:
        return compare(_shortened(evidence, causes), processes).equal
    except (SideFailed, ConfigError, TooFewSteps):  # it can't be switched off here
        return False


def _shortened(evidence: Evidence, without: Sequence[Cause]) -> Sides:
    """With causes switched off, for as many steps as the difference needs to show."""
    steps = evidence.comparison.steps_needed if evidence.comparison is not None else evidence.sides.steps
    return _without(without, evidence, steps)


def _without(causes: Sequence[Cause], evidence: Evidence, steps: int) -> Sides:
    overrides = {key: value for cause in causes for key, value in cause.switch(evidence).items()}
    interventions = {key: value for cause in causes for key, value in cause.interventions(evidence).items()}
    libraries = [name for cause in causes for name in cause.interventions(evidence).get(CONSTANT, ())]
    return evidence.sides.changed(overrides, interventions | ({CONSTANT: tuple(libraries)} if libraries else {}), steps)
