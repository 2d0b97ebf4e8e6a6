"""Is N one: the comparison finds equality where it is, and where it is not the reason."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig
from parity import compose

from lockstep.config import ConfigError
from lockstep.parity.processes import SideFailed
from lockstep.parity.report import parity

pytestmark = pytest.mark.slow

DATA = (
    "datamodule=synthetic_images",
    "datamodule.shape=[1,4,4]",
    "datamodule.num_classes=3",
    "datamodule.length=21",
    "datamodule.val_length=11",
    "datamodule.test_length=4",
    "datamodule.batch_size=4",
)
TINY = (*DATA, "trainer=cpu", "trainer.devices=2", "parity.steps=4", "model.net.hidden=[8]")


def composed(*overrides: str) -> Callable[[list[str]], DictConfig]:
    return lambda more: compose([*overrides, *more])


def compared(*overrides: str) -> tuple[bool, str]:
    """Are they equal, and what was said."""
    said: list[str] = []
    return parity(composed(*overrides), said.append), "\n".join(said)


@pytest.mark.parametrize(
    "overrides",
    [
        # dropout; a tail of 5 samples of 8 on 2 ranks; two batches a step, of which the tail's window has one
        ("model.net.dropout=0.5", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2", "datamodule.batch_size=2"),
        ("trainer.devices=3", "datamodule.global_batch_size=6", "model/optimizer=sgd", "parity.precision=run"),
        ("+datamodule.augment.flip=true", "+datamodule.augment.crop=1", "datamodule.standardize=true"),
        ("model=cnn", "~model.net.hidden", "model.net.width=4", "trainer.sync_batchnorm=true", "datamodule.drop_last=false"),
        ("model=cnn", "~model.net.hidden", "model.net.width=4", "parity.against=ddp"),
        ("parity.against=trainer.strategy.static_graph\\=true",),
    ],
    ids=["dropout, tail and accumulation", "three, float32, SGD", "augmentation", "BatchNorm", "against DDP", "a strategy's setting"],
)
def test_equal(overrides: tuple[str, ...]) -> None:
    cnn = "model=cnn" in overrides
    given = [item for item in TINY if not (cnn and "hidden" in item)] + [item for item in overrides if "~" not in item]
    equal, said = compared(*given)
    assert equal, said
    assert said.endswith("Equal.")
    assert "NOT EQUAL" not in said


PLANTED = {
    "BatchNorm without synchronisation": ("model=cnn", "model.net.width=4"),
    "a loss that averages over an uneven tail": ("model._target_=planted.MeanLoss", "datamodule.drop_last=false"),
    "dropout drawn per rank": ("model.net._target_=planted.PlainDropout",),
    "augmentation drawn per rank": ("datamodule._target_=planted.FlipsPerRank", "+datamodule.augment.flip=true"),
    "unused parameters": ("model.net._target_=planted.Unused",),
    "a metric that averages means": ("model._target_=planted.MeanOfMeans",),
    "a learning rate scaled by the world size": ("model._target_=planted.ScaledRate",),
    "non-deterministic kernels": ("model.net._target_=planted.Nondeterministic",),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_and_no_other(cause: str) -> None:
    overrides = PLANTED[cause]
    given = [item for item in TINY if not ("model=cnn" in overrides and "hidden" in item)]
    equal, said = compared(*given, *overrides)
    assert not equal, said
    assert [line for line in said.splitlines() if line.startswith("Why:")] == [f"Why: {cause}. With it switched off both are equal."]
