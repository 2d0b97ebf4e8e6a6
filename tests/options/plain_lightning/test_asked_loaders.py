"""Loaders that a module asks for by itself, which are as its user made them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import become_rank
from plain_lightning import DigitsData, LitClassifier
from ranks import in_ranks
from test_plain_lightning import fitted
from torch.utils.data import DataLoader, Subset

from lockstep.plain_lightning.callback import PlainLightning


class WithOneEvaluation(DigitsData):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train, self.val = Subset(self.train, range(96)), Subset(self.val, range(25))

    def test_dataloader(self) -> DataLoader[Any]:
        return self.val_dataloader()


class CountsSteps(LitClassifier):
    """As for a length that Lightning has not divided yet."""

    steps = 0

    def count(self) -> int:
        loader = self.trainer.datamodule.train_dataloader()  # pyright: ignore[reportAttributeAccessIssue]
        assert type(loader.sampler) is torch.utils.data.RandomSampler
        return len(loader) // self.trainer.world_size * int(self.trainer.max_epochs or 0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.steps = self.count()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Estimates(CountsSteps):
    def count(self) -> int:
        return int(self.trainer.estimated_stepping_batches)


def of_rank(rank: int, world_size: int, folder: Path) -> list[Any]:
    become_rank(rank, world_size)
    seen = []
    for kind in ("CountsSteps", "Estimates"):
        own = (f"model._target_=test_asked_loaders.{kind}", "datamodule._target_=test_asked_loaders.WithOneEvaluation")
        trainer = fitted(folder / kind, *own, "datamodule.batch_size=8", f"trainer.devices={world_size}")
        trainer.test(trainer.lightning_module, trainer.datamodule, verbose=False)
        causes = next(one.causes for one in trainer.callbacks if isinstance(one, PlainLightning))
        draws = [cause for cause in causes if "dataloader" in cause]
        seen.append((trainer.lightning_module.steps, trainer.global_step, sum(map(len, trainer.test_dataloaders.sampler)), draws))
    return seen


@pytest.mark.slow
def test_a_call_of_the_user_s_own_gets_a_loader_that_is_not_shared_out(tmp_path: Path) -> None:
    """It counted half of the steps, and a schedule over them ended at half time."""
    first, second = in_ranks(2, partial(of_rank, folder=tmp_path), tmp_path)
    assert first == [(12, 12, 13, [])] * 2
    assert second == [(12, 12, 12, [])] * 2
