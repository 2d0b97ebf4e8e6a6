"""Trains the sides of a comparison at the same time, each in a role of its own. Imports no torch."""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.extras.parity.processes import Processes
from lockstep.extras.parity.sides import Findings, Role, Sides, Training, for_steps

Roles = dict[str, tuple[Role, dict[str, Any]]]  # what each side does, and the interventions in its training alone


def train_once(sides: Sides, processes: Processes, roles: Roles) -> dict[str, Findings]:
    with TemporaryDirectory(prefix="comparison-", dir=processes.folder) as folder:
        return train_sides(sides, processes, Path(folder), roles)


def train_sides(sides: Sides, processes: Processes, folder: Path, roles: Roles) -> dict[str, Findings]:
    """Trains the sides in their roles, at the same time."""
    trainings = {}
    for name, (role, interventions) in roles.items():
        if role == "follow":
            (folder / name).mkdir()
        cfg = for_steps(sides.other if name == "other" else sides.reference, sides.steps, folder)
        cfg.interventions.update(interventions)
        content: Any = OmegaConf.to_container(cfg)
        if json.loads(json.dumps(content)) != content:  # JSON has no numbers for keys
            content = OmegaConf.to_yaml(cfg)
        trainings[name] = Training(content, asdict(Plan.from_config(cfg)), role, str(folder), name)
    return processes.train(trainings)
