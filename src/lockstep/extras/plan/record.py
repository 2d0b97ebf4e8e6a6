"""plan.json, in the sweep's directory: the answer, and all that it follows from."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.extras.plan.answer import Candidate, Plan
from lockstep.extras.plan.branches import Branches
from lockstep.extras.plan.critical import critical_batches
from lockstep.extras.plan.report_section import PLAN as PLAN
from lockstep.extras.report.step_model import Fit


def content(
    answer: str, overrides: Sequence[str], plan: Plan, known: Branches, fitted: Fit | None, facts: dict[str, Any]
) -> dict[str, Any]:
    batch, samples = facts["batch"], facts["samples"]["training"]
    return {
        "answer": answer,
        "overrides": [*overrides],
        "chosen": None if plan.chosen is None else _row(plan.chosen, batch, samples) | {"lr": plan.rate},
        "target": plan.target,
        "candidates": [_row(one, batch, samples) | {"is_on_front": one in plan.front} for one in plan.candidates],
        "rivals": [{"share": share, "devices": one.devices, "global_batch": one.multiple * batch} for share, one in plan.rivals],
        "critical_batches": critical_batches(known, batch),
        "throughput": None if fitted is None else asdict(fitted.model) | {"noise": fitted.noise},
        "branches": [
            {"from": one.start, "batch": one.multiple * batch, "lr": one.rate, "repeat": one.repeat, "losses": [*curve]}
            for one, curve in known.curves.items()
        ],
        **facts,
    }


def _row(one: Candidate, batch: int, samples: float) -> dict[str, Any]:
    return {
        "devices": one.devices,
        "global_batch": one.multiple * batch,
        "speedup": [one.speedup.mean, *one.speedup.bounds],
        "cost": [one.cost.mean, *one.cost.bounds],
        "seconds_of_a_training": [samples * value for value in (one.seconds.mean, *one.seconds.bounds)],
        "limit": one.limit,
        "errors": {**one.errors},
        "is_measured": one.is_measured,
        "is_sure": one.is_sure,
    }
