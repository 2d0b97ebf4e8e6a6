"""Small runs, built as train.py builds them."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.datamodules import Digits
from lockstep.models import Classifier

Built = tuple[Digits, Classifier, Any]
SMALL = ["trainer=cpu", "model=mlp", "model.net.hidden=[16]", "logger=csv", "++callbacks.pictures=null"]


def built(cfg: DictConfig, checkpoint: Path | None = None) -> Built:
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg), checkpoint)
    assert isinstance(datamodule, Digits)
    assert isinstance(model, Classifier)
    return datamodule, model, trainer


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
