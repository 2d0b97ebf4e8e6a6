"""Trainings of scripts/parity.py in processes that are forked, and not by train.py, which imports everything anew."""

from functools import partial
from pathlib import Path
from typing import Any

from in_process import composed_at_once, plain
from omegaconf import DictConfig, OmegaConf
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.parity.trainings import SideFailed
from lockstep.parity.verdict import parity

BARE = ("~callbacks", *(f"++guards.{name}=null" for name in ("preemption", "nonfinite")))


def train_in_ranks(cfg: DictConfig, folder: Path) -> None:
    train = partial(_train, content=OmegaConf.to_yaml(cfg), folder=folder)
    try:
        in_ranks(Plan.from_config(cfg).world_size, train, folder)
    except AssertionError as failure:
        *_, last = (line for line in str(failure).splitlines() if line.startswith(("lockstep.", "ValueError", "RuntimeError")))
        if ".errors." in last:
            raise ConfigError(last.partition(": ")[2]) from None
        raise SideFailed(folder.name, last, str(failure)) from None


def _train(rank: int, world_size: int, content: str, folder: Path) -> None:
    cfg: Any = OmegaConf.create(content)
    cfg.run_dir = str(folder)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.fit(model, datamodule)
    if cfg.test:
        trainer.test(model, datamodule, verbose=False)


def compared(*overrides: str) -> tuple[bool, str]:
    """Are they equal, and what was said."""
    said: list[str] = []
    cfg = composed_at_once(*plain(*overrides), config_name="parity")
    return parity(cfg, said.append, train_in_ranks), "\n".join(said)
