"""Is N one: the comparison finds equality where it is, and where it is not the reason."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig, open_dict
from parity import compose

from lockstep.errors import ConfigError
from lockstep.parity.processes import SideFailed
from lockstep.parity.verdict import parity

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
TINY = (*DATA, "trainer=cpu", "trainer.devices=2", "parity.steps=4")
CNN = ("model=cnn", "model.net.width=4")


def composed(*overrides: str) -> Callable[[list[str]], DictConfig]:
    return lambda more: compose([*overrides, *more])


def compared(*overrides: str) -> tuple[bool, str]:
    """Are they equal, and what was said."""
    said: list[str] = []
    return parity(composed(*overrides), said.append), "\n".join(said)


EQUAL = {
    "dropout": ("model.net.dropout=0.5", "datamodule.drop_last=false"),
    # 21 samples in steps of 8: the last takes 5, in two batches of 2 ranks and then in one of a single rank
    "a tail, accumulated": (
        *("trainer.accumulate_grad_batches=2", "datamodule.batch_size=2", "datamodule.drop_last=false"),
        "model.net._target_=planted.Peculiar",
    ),
    "three, float32, SGD": ("trainer.devices=3", "datamodule.global_batch_size=6", "model/optimizer=sgd", "parity.precision=run"),
    "augmentation": ("+datamodule.augment.flip=true", "+datamodule.augment.crop=1", "datamodule.standardize=true"),
    "BatchNorm": (*CNN, "datamodule.drop_last=false"),
    "BatchNorm, accumulated": (*CNN, "trainer.accumulate_grad_batches=2"),
    "logged at every step": ("model._target_=planted.LogsEveryStep",),
    "plain DDP": ("parity.against=ddp",),
    "a strategy's setting": ("parity.against='trainer.strategy.static_graph=true'",),
}


@pytest.mark.parametrize("what", EQUAL)
def test_equal(what: str) -> None:
    equal, said = compared(*TINY, *EQUAL[what])
    assert equal, said
    assert said.endswith("Equal.")
    assert "NOT EQUAL" not in said


def test_accumulated_batches_without_a_global_size() -> None:
    """As of a datamodule of the user's own."""

    def without(more: list[str]) -> DictConfig:
        cfg = compose([*TINY, "trainer.accumulate_grad_batches=2", "datamodule.batch_size=2", *more])
        with open_dict(cfg):
            del cfg.datamodule.global_batch_size
        return cfg

    said: list[str] = []
    assert parity(without, said.append), said
    assert "one process on the CPU; global batch 8 (8 per process)" in said[0]


def test_another_precision_is_not_equal_and_no_cause_is_made_up() -> None:
    equal, said = compared(*TINY, "trainer.precision=bf16-true", "parity.against='trainer.precision=64-true'")
    assert not equal
    assert "bf16-true\nagainst" in said
    assert "Why: none of the causes known here" in said


def test_a_model_that_fails_on_both_sides_is_a_failure_with_its_traceback() -> None:
    with pytest.raises(SideFailed, match="ValueError: planted") as failure:
        compared(*TINY, "model.net._target_=planted.Fails")
    assert "in forward" in failure.value.tracebacks[0]


def test_a_loss_that_is_not_finite_is_nothing_to_compare() -> None:
    with pytest.raises(SideFailed, match="the loss is not finite"):
        compared(*TINY, "model/optimizer=sgd", "model.optimizer.lr=1e300")


def test_epochs_of_other_lengths_are_not_equal() -> None:
    equal, said = compared(*TINY, "datamodule._target_=planted.AnotherTail")
    assert not equal
    assert "first in step 2: steps per epoch" in said
    assert "steps per epoch" in said.split("Not equal", maxsplit=1)[0]


def test_a_tail_that_is_not_reached_is_said_to_be_so() -> None:
    equal, said = compared(*TINY, "datamodule.drop_last=false", "parity.steps=2")
    assert equal
    assert "An epoch has more than these 2 steps: what only its last batch would show was not compared." in said


def test_a_cause_that_can_not_be_switched_off_is_none() -> None:
    """Seven samples are less than a batch of eight: none is left without the tail."""
    equal, said = compared(*TINY, *PLANTED["a loss that averages over an uneven tail"], "datamodule.length=7")
    assert not equal
    assert "Why: none of the causes known here." in said


def test_what_the_ranks_refuse_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=200: the global batch of 200 is larger than"):
        compared(*TINY, "datamodule.batch_size=100")


def test_a_unit_at_its_kink_in_float32_is_seen_for_what_it_is() -> None:
    equal, said = compared(*TINY, "model.net._target_=planted.Kink", "parity.precision=32-true")
    assert equal, said
    assert "equal but at kinks" in said
    assert "NOT EQUAL" not in said


PLANTED = {
    "BatchNorm without synchronisation": (*CNN, "trainer.sync_batchnorm=false"),
    "a loss that averages over an uneven tail": ("model._target_=planted.MeanLoss", "datamodule.drop_last=false"),
    "dropout drawn per rank": ("model.net._target_=planted.PlainDropout",),
    "augmentation drawn per rank": ("datamodule._target_=planted.FlipsPerRank", "+datamodule.augment.flip=true"),
    "unused parameters": ("model.net._target_=planted.Unused",),
    "a metric that averages means": ("model._target_=planted.MeanOfMeans",),
    "a learning rate scaled by the world size": ("model._target_=planted.ScaledRate",),
    "gradients of rounding alone": ("model.net._target_=planted.BiasBeforeNorm",),
    "non-deterministic kernels": ("model.net._target_=planted.Nondeterministic",),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_and_no_other(cause: str) -> None:
    equal, said = compared(*TINY, *PLANTED[cause])
    assert not equal, said
    named = [line for line in said.splitlines() if line.startswith("Why:")]
    assert named == [f"Why: {cause}. With it switched off both are equal."]


def test_two_causes_at_once_are_both_named() -> None:
    _, said = compared(*TINY, *PLANTED["dropout drawn per rank"], *PLANTED["augmentation drawn per rank"])
    named = [line.partition(".")[0] for line in said.splitlines() if line.startswith("Why:")]
    assert named == ["Why: dropout drawn per rank", "Why: augmentation drawn per rank"]
