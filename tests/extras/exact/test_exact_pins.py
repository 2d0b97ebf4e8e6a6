"""What would give other bits in another process: it is pinned, refused by name, or said."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_modules import Own
from in_process import SMALL, become_rank, composed
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.exact.metrics import _hash_of

TINY = ("datamodule=synthetic_images", "datamodule.length=45", "datamodule.val_length=22", "datamodule.shape=[1,8,8]")
TINY += ("datamodule.drop_last=false", "datamodule.batch_size=4", "datamodule.augment=null")
SHORT = ("trainer.exact=4", "test=false", "trainer.max_epochs=2", "optimized_metric=val/loss", "optimized_mode=min")


class DrawsInValidation(Own):
    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.rand((), generator=self.noise)


class DrawsInTraining(DrawsInValidation):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        torch.rand((), generator=self.noise)
        return super().training_step(batch, batch_idx)


def fit(rank: int, world_size: int, name: str, folder: Path) -> Any:
    become_rank(rank, world_size)
    cfg = composed(*SMALL, *TINY, *SHORT, f"trainer.devices={world_size}", run_dir=folder)
    cfg.model = {"_target_": f"test_exact_pins.{name}"}
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(2)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    try:
        trainer.fit(model, datamodule)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DrawsInValidation", "DrawsInTraining"])
def test_a_generator_that_a_model_holds_is_refused_when_a_step_draws_from_it(name: str, tmp_path: Path) -> None:
    line = in_ranks(1, partial(fit, name=name, folder=tmp_path / "run"), tmp_path)[0]
    assert line.startswith(f"trainer.exact=4: {name} draws from noise, which is not counted by virtual worker;")


def test_a_hash_is_another_with_one_bit() -> None:
    states = {"a": torch.zeros(3), "b": [torch.ones(2, dtype=torch.bfloat16)]}
    before = _hash_of(states)
    assert before == _hash_of({"a": torch.zeros(3), "b": [torch.ones(2, dtype=torch.bfloat16)]})
    states["a"][1] = -0.0
    assert before != _hash_of(states)
