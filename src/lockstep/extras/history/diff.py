"""What two runs have not in common, and the curves of one."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.config.overrides import flat
from lockstep.extras.history.code import FILE, fingerprint, read_code
from lockstep.extras.history.runs import RunRecord

SECTIONS = ("config", "code", "versions", "machine", "metrics")
_CODE = ("git_commit", "git_dirty")
_MACHINE = ("host", "platform", "cpu_count", "device_name", "world_size", "num_nodes", "threads", "precision", "python")
Differences = dict[str, tuple[Any, Any]]


def differences(one: RunRecord, other: RunRecord) -> dict[str, Differences]:
    """Returns for each section the names whose values differ, with both values; None where a run lacks one."""
    sides = [
        {
            "config": {key: value for key, value in flat(run.config).items() if key != "run_dir"}
            | {f"{group}: option": option for group, option in run.choices.items()},
            "code": {name: run.result.get(name) for name in _CODE} | _kept_code(run.path),
            "versions": versions if isinstance(versions := run.result.get("versions"), dict) else {},
            "machine": {name: run.result.get(name) for name in _MACHINE},
            "metrics": run.metrics,
        }
        for run in (one, other)
    ]
    return {section: _unequal(sides[0][section], sides[1][section]) for section in SECTIONS}


def read_curve(run_dir: Path, name: str) -> dict[int, float]:
    """The last value at each step, as TensorBoard's files have it in float32. Empty where they have no such curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run_dir / "tensorboard"
    if not folder.is_dir():
        return {}
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of a run that was resumed
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)} if name in events.Tags()["scalars"] else {}


def _kept_code(run_dir: Path) -> dict[str, str]:
    """The fingerprint of commit and changes."""
    code = read_code(run_dir)
    return {} if code is None else {FILE: fingerprint(code)}


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> Differences:
    names = [*one, *(name for name in other if name not in one)]
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}
