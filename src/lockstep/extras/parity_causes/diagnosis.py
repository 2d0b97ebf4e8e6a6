"""Why two sides differ: causes are suspected by a symptom, and named only if switching them off helps. Imports no torch."""

import logging
from collections.abc import Sequence

from lockstep.errors import ConfigError
from lockstep.extras import parity
from lockstep.extras.parity.comparison import Comparison, TooFewSteps, compare
from lockstep.extras.parity.processes import Processes, train_once
from lockstep.extras.parity.sides import Sides
from lockstep.extras.parity.verdict import Explanation
from lockstep.extras.parity_causes.causes import CAUSES, KERNELS, Cause

log = logging.getLogger(parity.__name__)  # whose progress scripts/parity.py shows
_SWITCHES = f"{__package__}.switches.switched_off"


def explain(comparison: Comparison, processes: Processes) -> list[Explanation]:
    """Returns what explains the first difference, then the first that is left, and so on; nothing if no cause is confirmed."""
    explanations: list[Explanation] = []
    possible, current = list(CAUSES), comparison
    while current is not None and (causes := _confirm_causes(current, possible, processes)):
        possible = [cause for cause in possible if cause not in causes]
        current = _rest(current, causes, processes)
        explanations.append(Explanation([(cause.name, cause.remedy) for cause in causes], current))
    return explanations


def _rest(comparison: Comparison, causes: Sequence[Cause], processes: Processes) -> Comparison | None:
    """Compares over all steps: causes are confirmed up to the first one that differs, by the end only if nothing else does."""
    if comparison.only_the_end_differs:
        return None
    rest = compare(_without(causes, comparison, comparison.sides.steps), processes)
    return None if rest.equal else rest


def _confirm_causes(comparison: Comparison, possible: Sequence[Cause], processes: Processes) -> list[Cause]:
    """Returns a cause, or as few as are needed together, without which the sides are equal."""
    suspects = [cause for cause in possible if cause.is_suspected(comparison)]
    confirmed = _confirmed(suspects, comparison, processes)
    if confirmed or comparison.failure is not None or _repeats(_without([], comparison, comparison.steps_needed), processes):
        return confirmed
    return _confirmed([KERNELS], comparison, processes) or _confirmed([*suspects, KERNELS], comparison, processes)


def _confirmed(suspects: Sequence[Cause], comparison: Comparison, processes: Processes) -> list[Cause]:
    """A cause that explains more than itself is taken only if nothing else does."""
    particular, general = ([cause for cause in suspects if cause.is_general == kind] for kind in (False, True))
    return (
        _alone(particular, comparison, processes)
        or _together(particular, comparison, processes)
        or _alone(general, comparison, processes)
        or (_together(suspects, comparison, processes) if general else [])
    )


def _alone(suspects: Sequence[Cause], comparison: Comparison, processes: Processes) -> list[Cause]:
    return next(([suspect] for suspect in suspects if _equal_without([suspect], comparison, processes)), [])


def _together(suspects: Sequence[Cause], comparison: Comparison, processes: Processes) -> list[Cause]:
    needed = [suspect for suspect in suspects if suspect.composes]
    if len(needed) < 2 or not _equal_without(needed, comparison, processes):
        return []
    for suspect in reversed(needed):  # the more particular ones come first
        fewer = [cause for cause in needed if cause is not suspect]
        needed = fewer if len(fewer) > 1 and _equal_without(fewer, comparison, processes) else needed
    return needed


def _equal_without(causes: Sequence[Cause], comparison: Comparison, processes: Processes) -> bool:
    """Compares for as many steps as the difference needs to show."""
    log.info(f"Comparing without {' and '.join(cause.name for cause in causes)} ...")
    try:
        sides = _without(causes, comparison, comparison.steps_needed)
        return compare(sides, processes, freely=comparison.only_the_end_differs).equal
    except (ConfigError, TooFewSteps):  # it can't be switched off here
        return False


def _without(causes: Sequence[Cause], comparison: Comparison, steps: int) -> Sides:
    values = {key: value for cause in causes for key, value in cause.switched_off(comparison).items()}
    return comparison.sides.changed(values | {"interventions.by": _SWITCHES}, steps)


def _repeats(sides: Sides, processes: Processes) -> bool:
    """Does the reference, trained twice, come to the same bits?"""
    findings = train_once(sides, processes, {"reference": ("lead", {}), "control": ("follow", {})})
    return all(difference.value == 0 for difference in findings["control"].differences)
